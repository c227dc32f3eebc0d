// Turns the router's choice into who computes what, under an ExpertControl. Pure and the same on every rank: it reads logits that all ranks have, and
// goes through tokens in the step's order and through a token's experts in the order of their logits.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gpu/expert_control.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"

namespace althing::gpu::cpu {

// Copy of a pair that nobody computes.
inline constexpr std::uint32_t no_copy = std::numeric_limits<std::uint32_t>::max();

// One layer of one step.
struct RoutedTokens {
  std::uint32_t tokens = 0;
  std::uint32_t experts_per_token = 0;
  const float* const* logits = nullptr;     // by token: (experts)
  std::span<const std::uint32_t> copies;    // by expert, each at least 1
  std::span<const std::uint8_t> padding{};  // by token, 1: only fills the batch up, gets no expert and counts nowhere; empty: none does
  std::span<std::uint32_t> chosen;          // (tokens, experts_per_token): as choose_experts left them, and what became of them
  std::span<float> weights;                 // likewise; 0 where the copy is no_copy
  std::span<std::uint32_t> copy;            // likewise, written
  std::span<PairFate> fate{};               // likewise; empty: nobody asks
};

class ExpertAssignment {
 public:
  // Reads `padding` too: what it counts, and what capacities rest on, are the other tokens.
  ControlCounts assign(const ExpertControl& control, double capacity_factor, const RoutedTokens& step);

  // Of the last step: what one copy takes; 0 without a limit.
  std::uint32_t capacity() const { return capacity_; }
  // Of the last step: pairs that wanted the expert they chose, of the hottest expert, as a share of what its copies take; 0 without a limit.
  double load() const { return load_; }
  // Of the last step: empty rows that this copy gets; 0 unless experts are padded.
  std::uint32_t padding_of(std::uint32_t expert, std::uint32_t copy) const { return pads_ ? capacity_ - taken_[first_copy_[expert] + copy] : 0; }

 private:
  void choose_how_many(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, ControlCounts& counts);
  void place(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, ControlCounts& counts);
  bool take(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, std::size_t pair, std::uint32_t expert);
  std::uint32_t next_best(const RoutedTokens& step, std::uint32_t token) const;
  void measure_load(const RoutedTokens& step);

  std::uint32_t capacity_ = 0;
  double load_ = 0;
  bool pads_ = false;
  std::vector<std::uint32_t> first_copy_;  // by expert, into taken_
  std::vector<std::uint32_t> taken_;       // by copy of every expert: its pairs
};

}  // namespace althing::gpu::cpu
