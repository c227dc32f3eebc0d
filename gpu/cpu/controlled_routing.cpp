// See the header.
#include "gpu/cpu/controlled_routing.hpp"

#include <algorithm>
#include <utility>

namespace althing::gpu::cpu {

ControlledRouting::ControlledRouting(const ExpertControl& control, std::uint32_t layers)
    : control_(control), factors_(layers, AdaptiveCapacity(control.capacity_factor)), counts_(layers) {}

void ControlledRouting::begin_epoch(std::vector<std::uint32_t> copies) {
  copies_ = std::move(copies);
  factors_.assign(factors_.size(), AdaptiveCapacity(control_.capacity_factor));
}

ControlCounts ControlledRouting::route(std::uint32_t layer, RoutedTokens step) {
  step.copies = copies_;
  const ControlCounts counts = assignment_.assign(control_, factors_[layer].factor(), step);
  if (control_.adaptive) factors_[layer].observe(assignment_.load());
  const std::lock_guard lock(mutex_);
  counts_[layer] += counts;
  return counts;
}

std::vector<ControlCounts> ControlledRouting::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::uint32_t ControlledRouting::padded_rows_max(const ExpertControl& control, std::uint32_t tokens, std::uint32_t experts_per_token,
                                                 std::uint32_t experts) {
  if (control.overflow != OverflowPolicy::pad) return 0;
  const double factor = control.adaptive ? std::max(control.capacity_factor, AdaptiveCapacity::factor_max) : control.capacity_factor;
  return expert_capacity(tokens, experts_per_token, experts, factor, control.capacity_multiple);
}

}  // namespace althing::gpu::cpu
