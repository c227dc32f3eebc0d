// A GPU or CPU rank as an actor: it owns its experts and its KV shard (through Executor) and runs one plan after another, in the order they come. A
// plan of another epoch is fenced off: nothing is computed for it. Detached, because a step occupies its thread. Beside it, an actor of its own
// answers probes from what the rank publishes, so that a long step is told apart from a frozen one.
#pragma once

#include <atomic>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/messages.hpp"
#include "gpu/comm/communicator.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

// From the rank's own process: a new epoch begins. The actor answers `scheduler` with RankReady.
struct JoinEpoch {
  std::shared_ptr<gpu::Communicator> communicator;
  caf::actor scheduler;
};

// What a rank publishes while it works; written by its thread, read by its pulse.
struct RankPulse {
  std::uint32_t rank = 0;
  std::atomic<std::uint64_t> epoch{0};
  std::atomic<std::uint64_t> progress{0};
  std::atomic<bool> busy{false};
  std::mutex mutex;
  std::vector<std::uint64_t> expert_tokens;  // under mutex
};

struct RankState {
  static inline const char* name = "rank";
  std::shared_ptr<gpu::Executor> executor;
  std::shared_ptr<gpu::Communicator> communicator;  // null until the first JoinEpoch
  caf::actor scheduler;
  caf::actor pulse_actor;
  std::shared_ptr<RankPulse> pulse;
  bool broken = false;  // this epoch's communicator failed; its other plans are void
};

caf::behavior rank_actor(caf::stateful_actor<RankState>* self, std::shared_ptr<gpu::Executor> executor);
caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse);

}  // namespace althing::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::JoinEpoch)
