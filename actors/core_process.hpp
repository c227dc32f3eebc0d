// The core process: gateway, frontends, scheduler and monitor in one actor system. Under a supervisor its ranks are other processes that connect to
// it; with --in-process they are actors of the same system.
#pragma once

#include <memory>
#include <string>

#include "actors/actor_system.hpp"
#include "actors/engine_setup.hpp"
#include "actors/settings.hpp"

namespace althing::actors {

// Runs until the supervisor goes away or says stop; returns the exit code.
int run_core_process(const ServeSettings& settings);

// Everything in this process, until SIGINT or SIGTERM.
int run_in_process(const ServeSettings& settings);

}  // namespace althing::actors
