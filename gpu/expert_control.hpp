// How tokens get experts when that is not simply the k largest logits: limits on what an expert takes in a step, router temperature, fewer experts
// for tokens that are sure. All of it is off by default (dropless), because whatever is on makes bits depend on a token's neighbours in the step, or
// makes another model of it. For experiments (`althing moe-sweep`) and for operators who know what they trade.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

// What becomes of a (token, expert) pair that finds its expert full. reroute: another copy of the expert with room, else the next-best expert with
// room, else as drop. drop: the pair adds nothing, the token's other experts keep their weights. pad: as drop, and experts with room are padded with
// empty rows to their capacity, so that every expert computes the same shape.
enum class OverflowPolicy : std::uint8_t { none, reroute, drop, pad };
// How many of its k experts a token really gets, one at least. gap: those whose logit is at most `value` below the best. mass: the first ones whose
// softmax over all experts adds up to `value`.
enum class DynamicK : std::uint8_t { off, gap, mass };

struct ExpertControl {
  OverflowPolicy overflow = OverflowPolicy::none;
  double capacity_factor = 1.25;
  std::uint32_t capacity_multiple = 1;  // capacities are rounded up to a multiple of this
  bool adaptive = false;                // each layer's factor follows its load (AdaptiveCapacity), from capacity_factor on
  float router_temperature = 1.0F;      // logits are divided by it before the softmax; which experts are chosen does not depend on it
  DynamicK dynamic_k = DynamicK::off;
  float dynamic_k_value = 0.0F;

  bool off() const { return overflow == OverflowPolicy::none && router_temperature == 1.0F && dynamic_k == DynamicK::off; }
};

constexpr std::string_view name_of(OverflowPolicy policy) {
  constexpr std::string_view names[] = {"none", "reroute", "drop", "pad"};
  return names[static_cast<int>(policy)];
}

// Errors: invalid_argument, naming the member and its bounds.
Status check(const ExpertControl& control);

// Tokens that one copy of an expert takes in a step: tokens * k / experts * factor, rounded up (what is within 1e-9 of a whole number is that
// number), then up to a multiple, and 1 at least. REQUIRES: experts and multiple are not 0.
std::uint32_t expert_capacity(std::uint64_t tokens, std::uint32_t k, std::uint32_t experts, double factor, std::uint32_t multiple);

// A layer's capacity factor, moved by the load of its hottest expert (tokens that chose it / capacity): over 0.96 it grows by a tenth up to 1.5,
// under 0.64 it shrinks by a tenth down to 1, between them it stays. A factor that starts outside of 1 … 1.5 moves into it.
class AdaptiveCapacity {
 public:
  static constexpr double factor_min = 1.0, factor_max = 1.5;

  explicit AdaptiveCapacity(double factor) : factor_(factor) {}
  void observe(double load);
  double factor() const { return factor_; }

 private:
  double factor_;
};

// Pairs of one layer, cumulative. Of what is wanted, dropped and omitted pairs are computed by nobody.
struct ControlCounts {
  std::uint64_t wanted = 0;      // tokens * k
  std::uint64_t to_replica = 0;  // computed by another copy than the one whose turn it was; not part of rerouted
  std::uint64_t rerouted = 0;    // computed by another expert
  std::uint64_t dropped = 0;
  std::uint64_t omitted = 0;  // by dynamic k
  std::uint64_t padding = 0;  // empty rows
  std::uint64_t room = 0;     // the sum of all copies' capacities; 0 without a limit

  ControlCounts& operator+=(const ControlCounts& other);
  ControlCounts& operator-=(const ControlCounts& other);
  friend bool operator==(const ControlCounts&, const ControlCounts&) = default;
};

}  // namespace althing::gpu
