// Faults of one rank on order: they wait here for their step and then really happen. An object of this kind exists only in a server that was started
// with --allow-faults; without one the rank actor has nothing to ask, and no code of this file is reached.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/fault_order.hpp"
#include "actors/rank_stamps.hpp"
#include "gpu/comm/communicator.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

class RankFaults : public std::enable_shared_from_this<RankFaults> {
 public:
  explicit RankFaults(std::shared_ptr<RankStamps> stamps) : stamps_(std::move(stamps)) {}

  // Any thread. Counts steps from now on.
  void arm(const FaultOrder& order);

  // A plan came, before the rank takes it: what is due happens. False: the plan is lost.
  bool lets_in(const StepPlan& plan, gpu::Executor& executor);
  // A result goes to the core. False: it is lost.
  bool lets_out(const StepResult& result);
  // What is due in a collective happens as the rank enters it, before its peers can see it there.
  std::shared_ptr<gpu::Communicator> around(std::shared_ptr<gpu::Communicator> inner);

  // For the communicator.
  void enter_collective();

 private:
  struct Armed {
    FaultOrder order;
    std::uint64_t left = 0;  // steps until it is due
  };

  std::vector<FaultOrder> take_due(std::vector<Armed>& waiting);
  bool happen(const FaultOrder& order, const StepPlan& plan, gpu::Executor& executor);
  void happened(const FaultOrder& order, std::uint64_t step, std::uint64_t epoch);
  static void signal_itself(FaultKind kind);
  static void run_out_of_memory();
  bool damage(const FaultOrder& order, const StepPlan& plan, gpu::Executor& executor);

  std::shared_ptr<RankStamps> stamps_;
  std::mutex mutex_;
  std::vector<Armed> incoming_, outgoing_;
  // Of the step at hand; one thread computes it.
  std::atomic<bool> in_collective_{false};
  FaultOrder collective_order_;
  std::uint32_t collectives_ = 0;
  std::uint64_t step_ = 0, epoch_ = 0;
};

}  // namespace althing::actors
