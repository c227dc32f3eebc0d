// See the header.
#include "actors/in_process_ranks.hpp"

#include <unistd.h>

#include <caf/scoped_actor.hpp>
#include <utility>

#include "actors/kv_mirror.hpp"
#include "actors/rank_actor.hpp"

namespace althing::actors {
namespace {

// Threads of one process do not stop each other; this only bounds a bug.
constexpr std::chrono::seconds collective_wait_max{30};
// Two steps are in flight at most, and the longest is a chunk of a prefill.
constexpr std::chrono::seconds last_steps_wait{10};

}  // namespace

Result<std::unique_ptr<InProcessRanks>> InProcessRanks::start(caf::actor_system& system, const EngineSetup& setup, std::uint32_t threads,
                                                              const caf::actor& scheduler) {
  const auto world = static_cast<std::uint32_t>(setup.placements.size());
  auto segment = gpu::SharedSegment::create(world, EpochId{1});
  if (!segment) return segment.error();
  auto mirrors = make_mirrors(setup);
  if (!mirrors) return mirrors.error();
  std::unique_ptr<InProcessRanks> ranks(new InProcessRanks(system, std::move(*segment)));
  for (std::uint32_t r = 0; r < world; ++r) {
    auto mirror = adopt_mirror(mirrors->empty() ? -1 : ::dup((*mirrors)[r].descriptor()), setup, r);
    if (!mirror) return mirror.error();
    auto executor = gpu::Executor::create(setup.model, setup.executor_config(r, threads, r, *mirror));
    if (!executor) return executor.error();
    ranks->memory_ = (*executor)->memory();
    ranks->ranks_.push_back(system.spawn<caf::detached>(rank_actor, std::shared_ptr<gpu::Executor>(std::move(*executor)), RankHooks{}));
  }
  caf::scoped_actor self{system};
  for (std::uint32_t r = 0; r < world; ++r) {
    std::shared_ptr<gpu::Communicator> communicator = ranks->segment_.join(RankId{r}, collective_wait_max);
    self->send(ranks->ranks_[r], JoinEpoch{std::move(communicator), scheduler, setup.grid, nullptr});
  }
  return ranks;
}

// An exit message overtakes plans, and a rank that has left fails the step that its peers are in. This one waits for its turn: all of them end the
// same steps first.
InProcessRanks::~InProcessRanks() {
  caf::scoped_actor self{system_};
  for (const caf::actor& rank : ranks_)
    self->request(rank, last_steps_wait, DropExecutor{}).receive([] {}, [&](const caf::error&) { segment_.abort(); });
  segment_.abort();
  for (const caf::actor& rank : ranks_) {
    self->send_exit(rank, caf::exit_reason::user_shutdown);
    self->wait_for(rank);
  }
}

}  // namespace althing::actors
