// One rank's process: weights mapped, executor ready, then it joins whatever epoch the supervisor announces. It never opens a socket to clients, and
// it ends at once when the supervisor is gone, also in the middle of a step (the control line has a thread of its own: the main one).
#pragma once

#include "actors/settings.hpp"

namespace althing::actors {

int run_rank_process(const ServeSettings& settings);

}  // namespace althing::actors
