// See the header.
#include "actors/in_process_ranks.hpp"

#include <caf/scoped_actor.hpp>
#include <utility>

#include "actors/rank_actor.hpp"

namespace althing::actors {
namespace {

// Threads of one process do not stop each other; this only bounds a bug.
constexpr std::chrono::seconds collective_wait_max{30};

}  // namespace

Result<std::unique_ptr<InProcessRanks>> InProcessRanks::start(caf::actor_system& system, const EngineSetup& setup, std::uint32_t threads,
                                                              const caf::actor& scheduler) {
  const auto world = static_cast<std::uint32_t>(setup.placements.size());
  auto segment = gpu::SharedSegment::create(world, EpochId{1});
  if (!segment) return segment.error();
  std::unique_ptr<InProcessRanks> ranks(new InProcessRanks(system, std::move(*segment)));
  for (std::uint32_t r = 0; r < world; ++r) {
    auto executor = gpu::Executor::create(setup.model, setup.executor_config(r, threads));
    if (!executor) return executor.error();
    ranks->memory_ = (*executor)->memory();
    ranks->ranks_.push_back(system.spawn<caf::detached>(rank_actor, std::shared_ptr<gpu::Executor>(std::move(*executor)), nullptr));
  }
  caf::scoped_actor self{system};
  for (std::uint32_t r = 0; r < world; ++r) {
    std::shared_ptr<gpu::Communicator> communicator = ranks->segment_.join(RankId{r}, collective_wait_max);
    self->send(ranks->ranks_[r], JoinEpoch{std::move(communicator), scheduler});
  }
  return ranks;
}

InProcessRanks::~InProcessRanks() {
  segment_.abort();
  caf::scoped_actor self{system_};
  for (const caf::actor& rank : ranks_) {
    self->send_exit(rank, caf::exit_reason::user_shutdown);
    self->wait_for(rank);
  }
}

}  // namespace althing::actors
