// The ranks as processes: they load, join an epoch, take plans, compute a step together, hang, and die. What a step draws is known since it was
// ordered (core_judge.hpp); here is only when its answer comes, or that it does not. A step needs every rank of its epoch, as collectives do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tests/simulation/stage.hpp"

namespace althing::tests {

class RankProcesses {
 public:
  // Messages to the core, as they leave: whoever carries them adds the way.
  struct Links {
    std::function<void(std::uint64_t epoch, std::uint32_t rank, const Grid& grid)> ready;
    std::function<void(std::uint64_t epoch, std::uint32_t rank, bool busy)> status;
    std::function<void(std::uint64_t epoch, bool refused)> failed;
    std::function<void(const StepResult& result, bool late)> done;
    std::function<StepResult(StepId)> result_of;
    std::function<void()> copy;  // the mirror's turn
  };
  // As much of a plan as matters to when it is done.
  struct Work {
    StepId step, base;
    std::uint64_t epoch = 0;
    bool snapshot = false;
    std::uint32_t tokens = 0;
  };

  RankProcesses(Stage& stage, std::uint32_t members, Links links) : stage_(stage), links_(std::move(links)), members_(members) {}

  // A member's process.
  void start(std::uint32_t member) { members_[member] = Member{true, false}; }
  void kill(std::uint32_t member) { members_[member] = Member{}; }
  void hang(std::uint32_t member) { members_[member].hung = true; }
  bool alive(std::uint32_t member) const { return members_[member].alive; }
  bool hung(std::uint32_t member) const { return members_[member].hung; }

  // Another epoch begins: whoever waits in a collective of the one before returns.
  void begin_epoch(std::uint64_t epoch, const Grid& grid, const std::vector<std::uint32_t>& members);
  void abort();
  void join(std::uint64_t epoch, std::uint32_t rank);
  // A plan, or a probe, has arrived at a rank of the present epoch.
  void take(const Work& work, std::uint32_t rank);
  void probe(std::uint32_t rank);
  // A message on its way to a rank is as old as its epoch.
  std::uint64_t epoch() const { return epoch_; }
  void lose_result() { lose_result_ = true; }

 private:
  struct Member {
    bool alive = false, hung = false;
  };
  struct Rank {
    std::uint32_t member = 0;
    bool joined = false, over = false;
    StepId last;
    std::deque<Work> queue;
  };
  bool answers(const Rank& rank) const { return members_[rank.member].alive && !members_[rank.member].hung; }
  void compute();
  void end_step(std::uint64_t epoch);

  Stage& stage_;
  Links links_;
  std::vector<Member> members_;
  std::uint64_t epoch_ = 0;
  Grid grid_{};
  std::vector<Rank> ranks_;
  bool aborted_ = true, computing_ = false, lose_result_ = false;
};

}  // namespace althing::tests
