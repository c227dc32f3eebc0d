// Chance that a seed repeats: a counter under a hash, the same on every machine.
#pragma once

#include <cstdint>

#include "tests/scheduler/pseudo_model.hpp"

namespace althing::tests {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(mix(0xA5A5u, seed)) {}
  std::uint64_t bits() { return mix(state_ += 0x9E3779B97F4A7C15u, 1); }
  // In [low, high].
  std::uint32_t between(std::uint64_t low, std::uint64_t high) { return static_cast<std::uint32_t>(low + bits() % (high - low + 1)); }
  // Never for 0.
  bool one_in(std::uint32_t n) { return n > 0 && bits() % n == 0; }
  // 0 as often as not, else in [low, high].
  std::uint32_t maybe(std::uint32_t low, std::uint32_t high) { return one_in(2) ? 0u : between(low, high); }

 private:
  std::uint64_t state_;
};

}  // namespace althing::tests
