// The handlers that every actor sets, because CAF's defaults end actors or print to stdout: an unmatched message is logged and dropped (never
// answered with an error that would kill the sender), errors and downs are logged, an exit request ends the actor, an exception ends the process with
// its reason.
#pragma once

#include <caf/scheduled_actor.hpp>

namespace althing::actors {

void guard(caf::scheduled_actor* self);

}  // namespace althing::actors
