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
#include <utility>

#include "actors/messages.hpp"
#include "gpu/comm/communicator.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

// From the rank's own process: a new epoch begins. The actor answers `scheduler` with RankReady.
struct JoinEpoch {
  std::shared_ptr<gpu::Communicator> communicator;
  caf::actor scheduler;
};

// What a rank publishes while it works: written by the threads that compute, read by its pulse.
struct RankPulse {
  explicit RankPulse(std::weak_ptr<const gpu::Executor> watched) : executor(std::move(watched)) {}

  std::atomic<std::uint32_t> rank{0};
  std::atomic<std::uint64_t> epoch{0};
  std::atomic<std::uint64_t> progress{0};
  std::atomic<std::uint32_t> steps_in_flight{0};
  const std::weak_ptr<const gpu::Executor> executor;
};

// One epoch as its steps see it; it lives until the last of them is done.
struct RankEpoch {
  RankId rank;
  EpochId epoch;
  caf::actor scheduler;
  std::function<void()> on_lost;  // as rank_actor's
  std::atomic<bool> over{false};  // a step failed, or another epoch began: what is in flight is void
};

struct RankState {
  static inline const char* name = "rank";
  std::shared_ptr<gpu::Executor> executor;
  std::shared_ptr<gpu::Communicator> communicator;  // null until the first JoinEpoch
  std::shared_ptr<RankEpoch> epoch;                 // likewise
  caf::actor pulse_actor;
  std::shared_ptr<RankPulse> pulse;
  std::function<void()> on_lost;
};

// `on_lost` is called, on any thread, when the executor's device is lost to this process; it ends the process, whose death tells the rest. Null where
// nobody could start it again: then that is a failed step like others.
caf::behavior rank_actor(caf::stateful_actor<RankState>* self, std::shared_ptr<gpu::Executor> executor, std::function<void()> on_lost);
caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse);

}  // namespace althing::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::JoinEpoch)
