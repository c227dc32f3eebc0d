// The supervisor: it starts processes again, notices who hangs, and announces epochs. What the next epoch looks like is decided by the server's own
// actors/membership, on virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "actors/membership.hpp"
#include "tests/simulation/rank_processes.hpp"

namespace althing::tests {

class SupervisorModel {
 public:
  // What it says to the core process, on a line of its own.
  struct Links {
    std::function<void(std::uint64_t epoch)> lost, grows;
    std::function<void(std::uint64_t epoch, std::uint32_t rank)> connection_ended;  // the kernel says this, not the supervisor
  };

  SupervisorModel(Stage& stage, RankProcesses& ranks, Links links);

  void begin();
  void core_is(bool up);
  void failed(std::uint64_t epoch, const std::vector<std::uint32_t>& silent);
  void ready(std::uint64_t epoch);
  void resumed(std::uint64_t epoch);
  // Ten times a second.
  void look();

  // Faults.
  void kill_some();
  void hang_some();
  void alarm_for_nothing();

  std::uint64_t epochs() const { return epoch_; }
  std::uint64_t deaths() const { return deaths_; }

 private:
  struct Process {
    bool loaded = false;
    std::uint64_t life = 0;
    Timeline::Time hangs_since = 0;
    std::uint32_t deaths = 0;
  };

  void start(std::uint32_t member);
  void loaded(std::uint32_t member);
  void died(std::uint32_t member);
  void new_epoch();
  void announce(const actors::Membership::Next& next);
  void tell_to_join(std::uint32_t rank);
  void watch_joining();
  std::optional<std::uint32_t> victim();
  actors::Membership::Clock::time_point clock() const { return actors::Membership::Clock::time_point(std::chrono::microseconds(stage_.time.now())); }

  Stage& stage_;
  RankProcesses& ranks_;
  Links links_;
  actors::Membership membership_;
  std::vector<Process> processes_;
  std::uint64_t epoch_ = 0, ready_epoch_ = 0, deaths_ = 0;
  Timeline::Time announced_ = 0, patience_us_ = 1'000'000;
  bool core_up_ = false;
};

}  // namespace althing::tests
