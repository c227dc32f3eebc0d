// Tells people and scripts that the server serves: a line on standard output, and the ready file when one was asked for.
#pragma once

#include <string>

#include "actors/settings.hpp"

namespace althing::actors {

// `metrics` is HOST:PORT or "", `control` the socket that takes faults or "". The file appears whole (written aside, then renamed) and holds
// {"endpoint", "metrics", "control", "pid"}. Errors: io.
Status announce(const ServeSettings& settings, const std::string& endpoint, const std::string& metrics, const std::string& control);

}  // namespace althing::actors
