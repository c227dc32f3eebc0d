// A GPU or CPU rank as an actor: it owns its experts and its KV shard (through Executor) and runs one plan after another, in the order they come. A
// plan of another epoch is fenced off: nothing is computed for it. Detached, because a step occupies its thread.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <memory>

#include "actors/messages.hpp"
#include "gpu/comm/communicator.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

// From the rank's own process: a new epoch begins. The actor answers `scheduler` with RankReady.
struct JoinEpoch {
  std::shared_ptr<gpu::Communicator> communicator;
  caf::actor scheduler;
};

struct RankState {
  static inline const char* name = "rank";
  std::shared_ptr<gpu::Executor> executor;
  std::shared_ptr<gpu::Communicator> communicator;  // null until the first JoinEpoch
  caf::actor scheduler;
};

caf::behavior rank_actor(caf::stateful_actor<RankState>* self, std::shared_ptr<gpu::Executor> executor);

}  // namespace althing::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::JoinEpoch)
