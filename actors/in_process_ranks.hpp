// Ranks as threads of this process: the same rank actors and the same shared-memory communicator as between processes, without a supervisor. For
// `generate`, `serve --in-process` and tests.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <memory>
#include <vector>

#include "actors/engine_setup.hpp"
#include "gpu/comm/shared_memory_communicator.hpp"

namespace althing::actors {

class InProcessRanks {
 public:
  // Spawns the ranks and makes them join `scheduler` under epoch 1. Errors: those of Executor::create and SharedSegment::create.
  static Result<std::unique_ptr<InProcessRanks>> start(caf::actor_system& system, const EngineSetup& setup, std::uint32_t threads,
                                                       const caf::actor& scheduler);
  // Lets them end the steps that they have, aborts those that do not end, ends them and waits. REQUIRES: the scheduler has ended, so that each of
  // them has the same plans.
  ~InProcessRanks();

  const gpu::ExecutorMemory& memory() const { return memory_; }

 private:
  InProcessRanks(caf::actor_system& system, gpu::SharedSegment segment) : system_(system), segment_(std::move(segment)) {}

  caf::actor_system& system_;
  gpu::SharedSegment segment_;
  std::vector<caf::actor> ranks_;
  gpu::ExecutorMemory memory_;
};

}  // namespace althing::actors
