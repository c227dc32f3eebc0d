// Tells people and scripts that the server serves: a line on standard output, and the ready file when one was asked for.
#pragma once

#include <string>

#include "actors/settings.hpp"

namespace althing::actors {

// `metrics` is HOST:PORT or "". The file appears whole (written aside, then renamed) and holds {"endpoint", "metrics", "pid"}. Errors: io.
Status announce(const ServeSettings& settings, const std::string& endpoint, const std::string& metrics);

}  // namespace althing::actors
