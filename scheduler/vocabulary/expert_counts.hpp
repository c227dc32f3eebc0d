// What one step did at the experts, as the bytes of StepResult::counts: how many tokens each copy of an expert took and with what gate weight, and
// sums of figures of the router, by layer. A rank that has every token's choice counts for all ranks, so the counts come and go with the step's
// result: there is nothing to wait for, and a step is counted whole or not at all. Little-endian, one flat string, so that a message copies it as a
// block. Sums are unsigned fixed point: they do not depend on the order of tokens, and equal steps give equal bytes.
// Invariant of every layer that can be read: its tokens, and the pairs that nobody computed, are experts_per_token times the step's tokens.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace althing {

static_assert(std::endian::native == std::endian::little, "counts are copied as they lie in memory");

// Units of fixed-point sums: gate weights are at most 1; figures of the router are cut at router_figure_max, so a step's sum cannot overflow.
inline constexpr double gate_weight_unit = 4294967296.0;  // 2^32
inline constexpr double router_figure_unit = 16777216.0;  // 2^24
inline constexpr double router_figure_max = 1048576.0;    // 2^20

// `copy` counts the ranks that hold the expert, ascending, as in HeldExpert.
struct ExpertCount {
  std::uint16_t expert = 0;
  std::uint16_t copy = 0;
  std::uint32_t tokens = 0;
  std::uint64_t gate_weight = 0;

  friend bool operator==(const ExpertCount&, const ExpertCount&) = default;
};
static_assert(sizeof(ExpertCount) == 16 && std::has_unique_object_representations_v<ExpertCount>);

// Sums over the tokens whose router logits are finite.
struct RouterSums {
  std::uint64_t tokens = 0;
  std::uint64_t entropy = 0;   // of the softmax over all experts, nats
  std::uint64_t variance = 0;  // of the logits over experts
  std::uint64_t margin = 0;    // between the largest logit and the second

  friend bool operator==(const RouterSums&, const RouterSums&) = default;
};
static_assert(sizeof(RouterSums) == 32);

// (token, expert) pairs that went another way than the router chose: all 0 unless experts are limited (gpu/expert_control.hpp).
struct DivertedPairs {
  std::uint64_t to_replica = 0;  // computed by another copy than the one whose turn it was
  std::uint64_t rerouted = 0;    // computed by another expert
  std::uint64_t dropped = 0;     // computed by nobody
  std::uint64_t omitted = 0;     // not wanted by a token that was sure without

  friend bool operator==(const DivertedPairs&, const DivertedPairs&) = default;
};
static_assert(sizeof(DivertedPairs) == 32);

struct LayerCounts {
  RouterSums router;
  DivertedPairs diverted{};
  std::vector<std::uint64_t> gate_weights;  // by place: the first choice's, the second's …
  std::vector<ExpertCount> experts;         // ascending by expert and copy; those with tokens only

  friend bool operator==(const LayerCounts&, const LayerCounts&) = default;
};

struct StepCounts {
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t tokens = 0;
  std::vector<LayerCounts> layers;

  friend bool operator==(const StepCounts&, const StepCounts&) = default;
};

namespace expert_counts {

struct Header {
  std::uint32_t layers = 0, experts = 0, experts_per_token = 0, tokens = 0;
};

template <class T>
void append(std::string& bytes, const T* values, std::size_t count) {
  if (count == 0) return;  // an empty vector may have no address
  const std::size_t at = bytes.size();
  bytes.resize(at + count * sizeof(T));
  std::memcpy(bytes.data() + at, values, count * sizeof(T));
}

// False when fewer bytes are left.
template <class T>
bool take(std::string_view& bytes, T* values, std::size_t count) {
  if (bytes.size() / sizeof(T) < count) return false;
  if (count > 0) std::memcpy(values, bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace expert_counts

// The bytes of a step whose layers follow with append_layer, in order.
inline std::string begin_step_counts(std::uint32_t layers, std::uint32_t experts, std::uint32_t experts_per_token, std::uint32_t tokens) {
  std::string bytes;
  const expert_counts::Header header{layers, experts, experts_per_token, tokens};
  expert_counts::append(bytes, &header, 1);
  return bytes;
}

inline void append_layer(std::string& bytes, const LayerCounts& layer) {
  const std::uint32_t count = static_cast<std::uint32_t>(layer.experts.size());
  expert_counts::append(bytes, &layer.router, 1);
  expert_counts::append(bytes, &layer.diverted, 1);
  expert_counts::append(bytes, layer.gate_weights.data(), layer.gate_weights.size());
  expert_counts::append(bytes, &count, 1);
  expert_counts::append(bytes, layer.experts.data(), layer.experts.size());
}

// Nothing when the bytes are not those of a step: another process made them.
inline std::optional<StepCounts> read_step_counts(std::string_view bytes) {
  expert_counts::Header header;
  if (!expert_counts::take(bytes, &header, 1) || header.experts_per_token > header.experts || header.experts > 65536) return std::nullopt;
  if (header.layers > bytes.size() / sizeof(RouterSums)) return std::nullopt;
  StepCounts step{header.experts, header.experts_per_token, header.tokens, std::vector<LayerCounts>(header.layers)};
  for (LayerCounts& layer : step.layers) {
    std::uint32_t count = 0;
    if (bytes.size() / sizeof(std::uint64_t) < header.experts_per_token) return std::nullopt;
    layer.gate_weights.resize(header.experts_per_token);
    if (!expert_counts::take(bytes, &layer.router, 1) || !expert_counts::take(bytes, &layer.diverted, 1) ||
        !expert_counts::take(bytes, layer.gate_weights.data(), header.experts_per_token) || !expert_counts::take(bytes, &count, 1) ||
        bytes.size() / sizeof(ExpertCount) < count)
      return std::nullopt;
    layer.experts.resize(count);
    expert_counts::take(bytes, layer.experts.data(), count);
    const std::uint64_t pairs = std::uint64_t{header.tokens} * header.experts_per_token;
    if (layer.diverted.dropped > pairs || layer.diverted.omitted > pairs) return std::nullopt;
    std::uint64_t tokens = layer.diverted.dropped + layer.diverted.omitted;
    for (std::size_t i = 0; i < layer.experts.size(); ++i) {
      const ExpertCount& now = layer.experts[i];
      const ExpertCount* before = i == 0 ? nullptr : &layer.experts[i - 1];
      const bool ascends = before == nullptr || before->expert < now.expert || (before->expert == now.expert && before->copy < now.copy);
      if (now.expert >= header.experts || now.tokens == 0 || !ascends) return std::nullopt;
      tokens += now.tokens;
    }
    if (tokens != pairs || layer.router.tokens > header.tokens) return std::nullopt;
  }
  if (!bytes.empty()) return std::nullopt;
  return step;
}

}  // namespace althing
