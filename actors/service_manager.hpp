// What the program that started us as a service wants to hear: one datagram to the socket that it named, as sd_notify(3) has it. No library of its
// is needed for that.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

// `socket`: a path, or @ and an abstract name; "": nobody wants to hear. `text`: lines NAME=value, as READY=1. Never waits. Errors: invalid_argument
// (no such name), io (nobody reads there).
Status tell_service_manager(const std::string& socket, std::string_view text);

}  // namespace althing::actors
