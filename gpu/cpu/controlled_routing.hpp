// The part of a step between the router and the experts when an ExpertControl is on: one assignment a layer, each layer's own adaptive factor, and
// what came of it, counted. Written by the step, counts read by whoever asks meanwhile.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu/cpu/expert_assignment.hpp"

namespace althing::gpu::cpu {

class ControlledRouting {
 public:
  // REQUIRES: check(control) is ok.
  ControlledRouting(const ExpertControl& control, std::uint32_t layers);

  // An epoch begins: how many copies each expert has now, and every factor starts afresh, since a rank that is new knows nothing of the steps before.
  void begin_epoch(std::vector<std::uint32_t> copies);

  // step.copies is filled in here.
  ControlCounts route(std::uint32_t layer, RoutedTokens step);
  // Empty rows for a copy of an expert in the layer that was routed last.
  std::uint32_t padding_of(std::uint32_t expert, std::uint32_t copy) const { return assignment_.padding_of(expert, copy); }

  // By layer, since creation.
  std::vector<ControlCounts> counts() const;

  // The most rows an expert can be padded to in a step of `tokens`; 0 when it is not padded.
  static std::uint32_t padded_rows_max(const ExpertControl& control, std::uint32_t tokens, std::uint32_t experts_per_token, std::uint32_t experts);

 private:
  ExpertControl control_;
  ExpertAssignment assignment_;
  std::vector<std::uint32_t> copies_;      // by expert
  std::vector<AdaptiveCapacity> factors_;  // by layer
  mutable std::mutex mutex_;               // of counts_
  std::vector<ControlCounts> counts_;      // by layer
};

}  // namespace althing::gpu::cpu
