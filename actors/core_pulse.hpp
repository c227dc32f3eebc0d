// How the core shows that it is alive: the page of stamps that a rank has too, with a beat of a thread that does nothing else, and progress that
// grows only while both the scheduler and the gateway go round. So whoever looks at the page sees a core that is stopped, and one whose door or
// whose scheduler hangs while the rest of it looks well.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "actors/rank_stamps.hpp"

namespace althing::actors {

class CorePulse {
 public:
  explicit CorePulse(std::shared_ptr<RankStamps> stamps) : stamps_(std::move(stamps)) {}

  // By the gateway's thread, each time round, also when there is nothing to do.
  void gateway_round() { rounds_.fetch_add(1, std::memory_order_relaxed); }

  // By the scheduler, likewise. From the first round of both on the core counts as busy: without progress it is stuck.
  void scheduler_round() {
    const std::uint64_t rounds = rounds_.load(std::memory_order_relaxed);
    if (std::exchange(seen_, rounds) == rounds) return;
    stamps_->progress.fetch_add(1, std::memory_order_relaxed);
    stamps_->in_flight.store(1, std::memory_order_release);
  }

 private:
  std::shared_ptr<RankStamps> stamps_;
  std::atomic<std::uint64_t> rounds_{0};
  std::uint64_t seen_ = 0;  // the scheduler's
};

}  // namespace althing::actors
