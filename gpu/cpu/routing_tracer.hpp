// Where one step sent the tokens of traced rows, and how long each part of its MoE layers took (scheduler/vocabulary/routing_trace.hpp). One rank
// tells for all, as StepCounter does and from the same choice. A step without traced rows is not looked at.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/cpu/expert_assignment.hpp"
#include "gpu/introduction.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"

namespace althing::gpu::cpu {

// Tokens of a traced row: first … first + tokens.size() - 1 of the step.
struct TracedRow {
  RequestId request;
  std::uint32_t first = 0;
  std::uint32_t start = 0;  // position of the first
  std::uint32_t top_m = 0;
  std::vector<TokenId> tokens;
};

class RoutingTracer {
 public:
  RoutingTracer(std::uint32_t layers, std::uint32_t experts) : layers_(layers), experts_(experts) {}

  // By expert and copy. Known once the ranks of an epoch have met.
  void know_homes(std::vector<std::vector<ExpertHome>> homes) { homes_ = std::move(homes); }

  // REQUIRES: homes are known.
  void begin(std::vector<TracedRow> rows, std::uint32_t experts_per_token);
  bool active() const { return !rows_.empty(); }

  // All below: REQUIRES: active(). Layers come in order.
  void begin_layer(std::uint32_t layer);
  // The phase that ends now.
  void end_phase(RoutingPhase phase);
  // The same, by whoever has measured it: a device's steps are told of when they are over.
  void set_phase(RoutingPhase phase, std::uint64_t nanoseconds) { nanoseconds_[layer_][static_cast<std::size_t>(phase)] = nanoseconds; }
  // What the router chose, (tokens, experts_per_token), before anything diverts it. Returns where it is to be told what became of each pair.
  std::span<PairFate> note_choice(std::span<const std::uint32_t> chosen);
  // What became of it, likewise. An empty `copy`: copies take turns. What this takes is in no phase.
  void add_layer(const float* const* logits, std::span<const std::uint32_t> experts, std::span<const float> weights,
                 std::span<const std::uint32_t> copy);

  // StepResult::routing; nothing is traced afterwards. Not of a step that was broken off.
  std::string take();

 private:
  RoutedExpert routed(std::uint32_t token, std::uint32_t expert, std::uint32_t copy, std::size_t pair) const;

  std::uint32_t layers_, experts_;
  std::vector<std::vector<ExpertHome>> homes_;
  std::vector<TracedRow> rows_;
  std::vector<StepRouting> parts_;                                           // by row
  std::vector<std::uint32_t> chosen_;                                        // of the layer at hand
  std::vector<PairFate> fates_;                                              // likewise
  std::vector<std::array<std::uint64_t, routing_phase_count>> nanoseconds_;  // by layer
  std::uint32_t layer_ = 0;
  std::uint32_t experts_per_token_ = 0;
  std::chrono::steady_clock::time_point phase_began_;
};

}  // namespace althing::gpu::cpu
