// `althing inject`: breaks a running server on purpose, where it was started with --allow-faults. Prints what was done or armed, in one line.
#pragma once

#include <string>

#include "actors/fault_order.hpp"

namespace althing::actors {

struct InjectSettings {
  std::string kind;
  std::string control;     // the socket; "" to read it from …
  std::string ready_file;  // … this file
  int rank = -1;
  FaultOrder order;  // kind and rank are filled in from above
};

// Exit codes: 0 done or armed; 2 not a fault that this server can have; 3 no server there, or no answer; 5 the server does not allow faults.
int run_inject(InjectSettings settings);

}  // namespace althing::actors
