// A GPU or CPU rank as an actor: it owns its experts and its KV shard (through Executor) and submits one plan after another, in the order they come.
// Steps end on whatever thread the executor likes, and are reported to the scheduler from there. A plan of another epoch is fenced off: nothing is
// computed for it; and so is what a step in flight brings after its epoch ended. Detached, because a CPU step occupies its thread. Beside it, an
// actor of its own answers probes from what the rank publishes, so that a long step is told apart from a frozen one.
#pragma once

#include <atomic>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "actors/messages.hpp"
#include "actors/rank_faults.hpp"
#include "actors/rank_stamps.hpp"
#include "gpu/comm/communicator.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

// From the rank's own process: a new epoch begins, in which the rank is the communicator's, in this grid. The actor answers `scheduler` with
// RankReady.
struct JoinEpoch {
  std::shared_ptr<gpu::Communicator> communicator;
  caf::actor scheduler;
  Grid grid;
  // The executor of that place; null: the one that is there is of that place already.
  std::shared_ptr<gpu::Executor> executor = nullptr;
};

// From the rank's own process: the executor goes, before another one is made that may need its memory. Answered when it is gone.
struct DropExecutor {};

// What the process around the actor gives it. All may be null.
struct RankHooks {
  // Called, on any thread, when the executor's device is lost to this process; it ends the process, whose death tells the rest. Null where nobody
  // could start it again: then that is a failed step like others.
  std::function<void()> on_lost;
  std::shared_ptr<RankStamps> stamps;  // null: nobody else looks
  std::shared_ptr<RankFaults> faults;  // null: none can be ordered
};

// What a rank publishes while it works: written by the threads that compute, read by its pulse and, through the stamps, by the supervisor.
struct RankPulse {
  explicit RankPulse(std::shared_ptr<RankStamps> page) : stamps(page != nullptr ? std::move(page) : std::make_shared<RankStamps>()) {}

  void watch(std::weak_ptr<const gpu::Executor> watched) {
    const std::lock_guard lock(mutex);
    executor = std::move(watched);
  }
  // Null while there is none.
  std::shared_ptr<const gpu::Executor> watched() const {
    const std::lock_guard lock(mutex);
    return executor.lock();
  }

  std::atomic<std::uint32_t> rank{0};
  const std::shared_ptr<RankStamps> stamps;
  std::atomic<std::uint64_t> last_done_ns{0};  // when the newest step ended: the next one had the device from then on

 private:
  mutable std::mutex mutex;
  std::weak_ptr<const gpu::Executor> executor;
};

// One epoch as its steps see it; it lives until the last of them is done.
struct RankEpoch {
  RankId rank;
  EpochId epoch;
  caf::actor scheduler;
  RankHooks hooks;
  std::atomic<bool> over{false};  // a step failed, or another epoch began: what is in flight is void
};

struct RankState {
  static inline const char* name = "rank";
  std::shared_ptr<gpu::Executor> executor;          // null in a spare that never had a place
  std::shared_ptr<gpu::Communicator> communicator;  // null until the first JoinEpoch
  std::shared_ptr<RankEpoch> epoch;                 // likewise
  caf::actor pulse_actor;
  std::shared_ptr<RankPulse> pulse;
  RankHooks hooks;
};

// `executor` may be null: then the first JoinEpoch brings one.
caf::behavior rank_actor(caf::stateful_actor<RankState>* self, std::shared_ptr<gpu::Executor> executor, RankHooks hooks);
caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse);

}  // namespace althing::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::JoinEpoch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::DropExecutor)
