// One block of a benchmark whose two sides take turns in one run: the same decode steps again and again, in processor time of the whole process, so
// that threads beside the step are counted and the machine's other work is not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

#include "tests/gpu/engine.hpp"

namespace althing::tests {

inline constexpr std::uint32_t block_prompt = 16;  // tokens of each row before the steps

inline double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// REQUIRES: values not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Decodes `steps` tokens of `rows` rows; returns processor seconds a step. Rows start afresh, so every block computes the same. `before` and `after`
// are called around each step.
template <class Before, class After>
std::optional<double> decode_block(Engine& engine, std::uint64_t epoch, std::uint32_t rows, std::uint32_t steps, Before before, After after) {
  if (!engine.enter_epoch(epoch)) return std::nullopt;
  StepPlan plan = engine.next_plan();
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < block_prompt; ++i) tokens.push_back(row * 31 + i * 17 + 5);
    engine.admit(plan, row, row + 1, {}, block_prompt + steps + 1);
    plan.work.push_back(prompt_work(row, 0, tokens, true));
  }
  if (!engine.run(plan)) return std::nullopt;
  const double began = processor_seconds();
  for (std::uint32_t step = 0; step < steps; ++step) {
    StepPlan next = engine.next_plan();
    for (std::uint32_t row = 0; row < rows; ++row) next.work.push_back(decode_work(row, block_prompt + step));
    before();
    if (!engine.run(next)) return std::nullopt;
    after();
  }
  return (processor_seconds() - began) / steps;
}

}  // namespace althing::tests
