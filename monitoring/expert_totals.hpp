// What experts have done since this process started, in exact integers: tokens and gate weights by layer and expert, tokens by layer and rank, tokens
// by the slot that computed them. Steps are added whole or not at all, once each. No clock, no lock, no metric library.
// Invariant, as long as counts come with steps: in every layer the experts' tokens, with the pairs that nobody computed (diverted()), are
// experts_per_token x tokens(), and the ranks' and the slots' are the experts'.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::monitoring {

struct ExpertGrid {
  std::uint32_t ranks = 0;  // of the full grid
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;  // a layer
  std::uint32_t experts_per_token = 0;
};

// Where a copy of an expert is.
struct ExpertPlace {
  std::uint32_t rank = 0;
  std::uint32_t slot = 0;
};
// By expert: copy c is at places[c].
using ExpertPlaces = std::vector<std::vector<ExpertPlace>>;

// A sum of fixed-point numbers that does not overflow in a server's life.
struct FixedSum {
  std::uint64_t whole = 0, fraction = 0;  // fraction < 2^32

  void add(std::uint64_t in_gate_weight_units) {
    fraction += in_gate_weight_units & 0xffffffffu;
    whole += (in_gate_weight_units >> 32) + (fraction >> 32);
    fraction &= 0xffffffffu;
  }
};

// A slot as it was in some layout of the server's life.
struct SlotKey {
  std::uint32_t expert = 0, rank = 0, slot = 0;

  friend auto operator<=>(const SlotKey&, const SlotKey&) = default;
};

class ExpertTotals {
 public:
  explicit ExpertTotals(ExpertGrid grid);

  // From now on steps are of this layout. False, and nothing changes, when it is not of this grid.
  bool use_layout(ExpertPlaces places);
  // False, and nothing changes, when the step is not of this grid or names a copy that the layout does not have.
  bool add(const StepCounts& step);
  // Tokens that a rank gained, (layers, experts), where counts do not come with steps. REQUIRES: of this grid.
  void add_of_rank(std::uint32_t rank, std::span<const std::uint64_t> gained);

  const ExpertGrid& grid() const { return grid_; }
  const ExpertPlaces& places() const { return places_; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t tokens() const { return computed_; }                                  // of those steps
  std::uint64_t copies_met() const { return met_; }                                   // copies of experts, summed over steps and layers
  const std::vector<std::uint64_t>& expert_tokens() const { return expert_tokens_; }  // (layers, experts)
  const std::vector<FixedSum>& gate_weights() const { return gate_weights_; }         // likewise
  const std::vector<DivertedPairs>& diverted() const { return diverted_; }            // by layer
  const std::vector<std::uint64_t>& rank_tokens() const { return rank_tokens_; }      // (layers, ranks)
  const std::map<SlotKey, std::vector<std::uint64_t>>& slot_tokens() const { return slot_tokens_; }  // by layer

 private:
  using SlotTokens = std::vector<std::uint64_t>;

  ExpertGrid grid_;
  ExpertPlaces places_;
  std::uint64_t steps_ = 0, computed_ = 0, met_ = 0;
  std::vector<std::uint64_t> expert_tokens_, rank_tokens_;
  std::vector<FixedSum> gate_weights_;
  std::vector<DivertedPairs> diverted_;
  std::map<SlotKey, SlotTokens> slot_tokens_;
  std::vector<std::vector<SlotTokens*>> slot_of_;  // of the layout: by expert and copy
};

}  // namespace althing::monitoring
