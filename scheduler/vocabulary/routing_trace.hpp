// Where the router sent the tokens of requests that are traced, and the bytes of StepResult::routing. Only tokens of rows that asked for it are in it
// (RowSetup::trace_top_m), so a step without any has no bytes. It is made by the rank that counts for all (expert_counts.hpp) and from the same
// numbers: over all tokens of a step, pairs that are computed are the step's counts. One section a row: its head says how long it is, so whoever
// only passes it on need not read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/expert_counts.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing {

// Parts of an MoE layer, in the order in which a step runs them.
enum class RoutingPhase : std::uint8_t { router, capacity, dispatch, experts, merge };
inline constexpr std::size_t routing_phase_count = 5;

constexpr std::string_view name_of(RoutingPhase phase) {
  constexpr std::string_view names[] = {"router", "capacity", "dispatch", "experts", "merge"};
  return names[static_cast<int>(phase)];
}

// What became of one (token, expert) pair.
enum class PairFate : std::uint8_t {
  chosen,    // computed by the expert that the router chose, by the copy whose turn it was
  replica,   // computed by another copy of it
  rerouted,  // computed by another expert, because the chosen one was full
  dropped,   // computed by nobody, because experts were full
  omitted,   // computed by nobody, because the token was sure without
};
inline constexpr std::uint32_t pair_fate_count = 5;

constexpr std::string_view name_of(PairFate fate) {
  constexpr std::string_view names[] = {"chosen", "replica", "rerouted", "dropped", "omitted"};
  return names[static_cast<int>(fate)];
}
constexpr bool is_computed(PairFate fate) { return fate < PairFate::dropped; }

struct RouterLogit {
  std::uint32_t expert = 0;
  float logit = 0;

  friend bool operator==(const RouterLogit&, const RouterLogit&) = default;
};
static_assert(sizeof(RouterLogit) == 8);

struct RoutedExpert {
  std::uint16_t expert = 0;  // that computes the pair; the chosen one where nobody does
  std::uint16_t chosen = 0;  // by the router
  // Which of its copies, and where that is. 0 where nobody computes the pair.
  std::uint16_t copy = 0;
  std::uint16_t rank = 0;
  std::uint16_t slot = 0;
  PairFate fate = PairFate::chosen;
  std::uint8_t unused = 0;
  float weight = 0;  // that the output is multiplied by; 0 where nobody computes the pair

  friend bool operator==(const RoutedExpert&, const RoutedExpert&) = default;
};
static_assert(sizeof(RoutedExpert) == 16);

// One traced row's part in one step, or some tokens of it.
struct StepRouting {
  StepId step;
  EpochId epoch;
  std::uint32_t start = 0;       // position of the first token
  std::uint32_t recomputed = 0;  // so many tokens from the first on had been computed by an accepted step before, and were lost
  std::uint32_t layers = 0;
  std::uint32_t top_m = 0;              // logits of a token and layer, falling
  std::uint32_t experts_per_token = 0;  // in the order of the router's choice
  std::vector<TokenId> tokens;
  // (layers): nanoseconds of the whole step in each phase of the layer, on the rank that tells.
  std::vector<std::array<std::uint64_t, routing_phase_count>> nanoseconds;
  std::vector<RouterLogit> logits;    // (tokens, layers, top_m)
  std::vector<RoutedExpert> experts;  // (tokens, layers, experts_per_token)

  friend bool operator==(const StepRouting&, const StepRouting&) = default;
};

// Whether the sizes of its parts fit each other, and its ids each other. What comes from another process must be asked.
inline bool is_whole(const StepRouting& routing) {
  const std::uint64_t tokens = routing.tokens.size(), cells = tokens * routing.layers;
  constexpr std::uint32_t most = 65536;  // of anything: products cannot overflow
  if (tokens > most || routing.layers > most || routing.top_m > most || routing.experts_per_token > most || routing.recomputed > tokens) return false;
  return routing.nanoseconds.size() == routing.layers && routing.logits.size() == cells * routing.top_m &&
         routing.experts.size() == cells * routing.experts_per_token &&
         std::all_of(routing.experts.begin(), routing.experts.end(),
                     [](const RoutedExpert& e) { return static_cast<std::uint32_t>(e.fate) < pair_fate_count; });
}

// What it takes in memory, about.
inline std::size_t bytes_of(const StepRouting& routing) {
  return sizeof routing + routing.tokens.size() * sizeof(TokenId) + routing.nanoseconds.size() * sizeof(routing.nanoseconds[0]) +
         routing.logits.size() * sizeof(RouterLogit) + routing.experts.size() * sizeof(RoutedExpert);
}

// The same in pieces of `tokens_max` tokens at most, in order. Times are of the step, so each piece has them.
inline std::vector<StepRouting> in_pieces(StepRouting&& whole, std::size_t tokens_max) {
  std::vector<StepRouting> pieces;
  if (whole.tokens.size() <= tokens_max) {
    pieces.push_back(std::move(whole));
    return pieces;
  }
  const std::size_t logits = std::size_t{whole.layers} * whole.top_m, experts = std::size_t{whole.layers} * whole.experts_per_token;
  const auto part = [](const auto& values, std::size_t from, std::size_t to) {
    return std::decay_t<decltype(values)>(values.begin() + static_cast<std::ptrdiff_t>(from), values.begin() + static_cast<std::ptrdiff_t>(to));
  };
  for (std::size_t from = 0; from < whole.tokens.size(); from += tokens_max) {
    const std::size_t to = std::min(whole.tokens.size(), from + tokens_max);
    StepRouting& piece = pieces.emplace_back();
    piece.step = whole.step;
    piece.epoch = whole.epoch;
    piece.start = whole.start + static_cast<std::uint32_t>(from);
    piece.recomputed = static_cast<std::uint32_t>(std::clamp<std::size_t>(whole.recomputed, from, to) - from);
    piece.layers = whole.layers;
    piece.top_m = whole.top_m;
    piece.experts_per_token = whole.experts_per_token;
    piece.tokens = part(whole.tokens, from, to);
    piece.nanoseconds = whole.nanoseconds;
    piece.logits = part(whole.logits, from * logits, to * logits);
    piece.experts = part(whole.experts, from * experts, to * experts);
  }
  return pieces;
}

// One section of StepResult::routing. `body` is read by read_routing.
struct RoutingSection {
  std::uint64_t request = 0;
  std::uint32_t start = 0, count = 0;  // of its tokens' positions
  std::string_view body;
};

namespace routing_trace {

struct Head {
  std::uint64_t request = 0, body_bytes = 0;
  std::uint32_t start = 0, count = 0;
};
struct Sizes {
  std::uint32_t layers = 0, top_m = 0, experts_per_token = 0;
};

}  // namespace routing_trace

// `step`, `epoch` and `recomputed` are not written: whoever takes the result knows them.
inline void append_routing(std::string& bytes, RequestId request, const StepRouting& routing) {
  std::string body;
  const routing_trace::Sizes sizes{routing.layers, routing.top_m, routing.experts_per_token};
  expert_counts::append(body, &sizes, 1);
  expert_counts::append(body, routing.tokens.data(), routing.tokens.size());
  expert_counts::append(body, routing.nanoseconds.data(), routing.nanoseconds.size());
  expert_counts::append(body, routing.logits.data(), routing.logits.size());
  expert_counts::append(body, routing.experts.data(), routing.experts.size());
  const routing_trace::Head head{request.value, body.size(), routing.start, static_cast<std::uint32_t>(routing.tokens.size())};
  expert_counts::append(bytes, &head, 1);
  bytes += body;
}

// Takes the next section off; nothing at the end, or when the bytes are not those of sections.
inline std::optional<RoutingSection> next_section(std::string_view& bytes) {
  routing_trace::Head head;
  if (!expert_counts::take(bytes, &head, 1) || head.body_bytes > bytes.size()) return std::nullopt;
  const RoutingSection section{head.request, head.start, head.count, bytes.substr(0, head.body_bytes)};
  bytes.remove_prefix(head.body_bytes);
  return section;
}

// Nothing when the bytes are not those of a section: another process made them.
inline std::optional<StepRouting> read_routing(const RoutingSection& section) {
  std::string_view body = section.body;
  routing_trace::Sizes sizes;
  if (!expert_counts::take(body, &sizes, 1)) return std::nullopt;
  StepRouting routing;
  routing.start = section.start;
  routing.layers = sizes.layers;
  routing.top_m = sizes.top_m;
  routing.experts_per_token = sizes.experts_per_token;
  const auto take = [&](auto& values, std::uint64_t count) {
    using Value = typename std::decay_t<decltype(values)>::value_type;
    if (body.size() / sizeof(Value) < count) return false;
    values.resize(count);
    return expert_counts::take(body, values.data(), count);
  };
  constexpr std::uint32_t most = 65536;
  if (section.count > most || sizes.layers > most || sizes.top_m > most || sizes.experts_per_token > most) return std::nullopt;
  const std::uint64_t cells = std::uint64_t{section.count} * sizes.layers;
  if (!take(routing.tokens, section.count) || !take(routing.nanoseconds, sizes.layers) || !take(routing.logits, cells * sizes.top_m) ||
      !take(routing.experts, cells * sizes.experts_per_token) || !body.empty() || !is_whole(routing))
    return std::nullopt;
  return routing;
}

}  // namespace althing
