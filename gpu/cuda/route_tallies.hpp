// What a step counts at the experts, on the device: sums of 64 bits in the units of scheduler/vocabulary/expert_counts.hpp. One piece of memory holds
// those of all layers, so that one copy brings them back; begin_step zeroes it. Sums of integers do not depend on the order of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace althing::gpu::cuda {

// Of one layer.
struct RouteTallies {
  unsigned long long* tokens = nullptr;        // (experts); nullptr: nobody counts
  unsigned long long* gate_weights = nullptr;  // (experts) of tokens whose logits are finite
  unsigned long long* places = nullptr;        // (experts_per_token) the same by place: the first choice's, the second's, …
  unsigned long long* router = nullptr;        // (4) as RouterSums; sums of figures in float, so to about six digits
};
inline constexpr std::uint32_t router_sums = 4;

struct TallyLayout {
  std::uint32_t layers = 0, experts = 0, experts_per_token = 0;

  constexpr std::size_t words() const { return std::size_t{layers} * (2 * experts + experts_per_token + router_sums); }
  // In `memory` of words(): tokens of all layers, then their gate weights, places, router sums. Word is unsigned long long, perhaps const.
  template <class Word>
  constexpr Word* tokens(Word* memory, std::uint32_t layer) const {
    return memory + std::size_t{layer} * experts;
  }
  template <class Word>
  constexpr Word* gate_weights(Word* memory, std::uint32_t layer) const {
    return memory + std::size_t{layers + layer} * experts;
  }
  template <class Word>
  constexpr Word* places(Word* memory, std::uint32_t layer) const {
    return memory + std::size_t{2 * layers} * experts + std::size_t{layer} * experts_per_token;
  }
  template <class Word>
  constexpr Word* router(Word* memory, std::uint32_t layer) const {
    return memory + std::size_t{layers} * (2 * experts + experts_per_token) + std::size_t{layer} * router_sums;
  }
  constexpr RouteTallies of(unsigned long long* memory, std::uint32_t layer) const {
    return {tokens(memory, layer), gate_weights(memory, layer), places(memory, layer), router(memory, layer)};
  }
};

}  // namespace althing::gpu::cuda
