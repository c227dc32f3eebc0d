// Counts one step at the experts of all ranks: every rank has every token's choice, and which copy computes it follows from the token's place in the
// step, so one rank can tell for all what the step did (scheduler/vocabulary/expert_counts.hpp). Sums are integers: the bytes depend on the tokens
// and the layout only. A step that is broken off leaves nothing behind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cpu/expert_assignment.hpp"
#include "gpu/cpu/router.hpp"
#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::gpu::cpu {

// A layer's choice: (tokens, experts_per_token) each, the same number in every layer.
struct LayerChoice {
  std::span<const std::uint32_t> experts;
  std::span<const float> weights;
  std::span<const std::uint32_t> copy;  // empty: copies take turns
  DivertedPairs diverted{};
};

class StepCounter {
 public:
  StepCounter(std::uint32_t layers, std::uint32_t experts, std::uint32_t tokens_max);

  // By expert: on how many ranks it is. Known once the ranks of an epoch have met.
  void know_copies(std::span<const std::uint32_t> copies);

  // REQUIRES: copies are known; tokens <= tokens_max.
  void begin(std::uint32_t tokens, std::uint32_t experts_per_token);
  // Different tokens may be noted by different threads at once.
  void note_router(std::uint32_t token, std::span<const float> logits) { figures_[token] = router_figures(logits); }
  // Layers come in order, after the layer's tokens have been noted.
  void add_layer(const LayerChoice& choice);
  // What has been counted since begin().
  std::string take() { return std::move(bytes_); }

 private:
  RouterSums sum_figures() const;

  std::uint32_t layers_, experts_;
  std::uint32_t tokens_ = 0, experts_per_token_ = 0;
  std::vector<RouterFigures> figures_;     // by token
  std::vector<std::uint32_t> copies_;      // by expert
  std::vector<std::uint32_t> first_cell_;  // likewise: cells_[first_cell_[e] + c] is copy c
  std::vector<ExpertCount> cells_;         // of the layer at hand
  LayerCounts layer_;                      // likewise
  std::string bytes_;
};

}  // namespace althing::gpu::cpu
