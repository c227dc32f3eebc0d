// What the parts of one simulated cluster share: its seed's setup and chance, virtual time, the trace, and the first thing that was wrong.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core.hpp"
#include "scheduler/vocabulary/placement.hpp"
#include "tests/simulation/dice.hpp"
#include "tests/simulation/timeline.hpp"
#include "tests/support/workload.hpp"

namespace althing::tests {

// Faults of a seed, as the mean time between two of a kind in microseconds; 0: never. A fault that is always there hides what needs its absence.
struct FaultRates {
  std::uint32_t rank_dies = 0, rank_hangs = 0, core_dies = 0;
  std::uint32_t plan_lost = 0, result_lost = 0, false_alarm = 0;  // a false alarm: an epoch is called over and nothing was wrong
  std::uint32_t mirror_drop = 0, mirror_damage = 0;               // one in so many steps
};

// What clients do besides waiting for their answer: one in so many does, 0: nobody.
struct ClientHabits {
  std::uint32_t cancel = 0, vanish = 0, slow = 0, deadline = 0, stop = 0, choices = 0, penalty = 0, trace = 0, stop_token = 0, grammar = 0,
                repeat = 0;
};

struct ClusterSetup {
  scheduler::CoreConfig core;
  std::vector<Grid> grids;  // the full one, then smaller ones
  std::uint32_t spares = 0;
  bool shrink = false;
  bool smaller_pools = false;  // smaller grids have fewer pages
  std::uint32_t step_us = 0, token_us = 0, local_us = 0, net_us = 0, slow_message = 0;
  std::uint32_t respawn_us = 0, core_restart_us = 0, step_timeout_ms = 0;
  std::uint32_t credit = 0;  // what a client grants beforehand; 0: it does not count
  std::uint64_t asks_from_us = 0, faults_until_us = 0;
  std::uint64_t drain_at_us = 0;  // 0: never
  FaultRates faults;
  ClientHabits habits;
  workload::Spec workload;
};

ClusterSetup setup_of(std::uint64_t seed, std::uint32_t requests);

struct Stage {
  Stage(std::uint64_t seed, std::uint32_t requests) : setup(setup_of(seed, requests)), dice(seed ^ 0xC1u), trace(seed) {}

  // Where everybody sees the same numbers, they go into the trace: two runs of one seed have one trace.
  template <class... Numbers>
  void note(Numbers... numbers) {
    ((trace = mix(trace, static_cast<std::uint64_t>(numbers))), ...);
  }
  void fail(std::string why) {
    if (broken.empty()) broken = "at " + std::to_string(time.now()) + " us: " + std::move(why);
  }
  bool faults() const { return time.now() < setup.faults_until_us; }

  ClusterSetup setup;
  Dice dice;
  Timeline time;
  std::uint64_t trace;
  std::string broken;
};

}  // namespace althing::tests
