// Tells people and scripts that the server serves: a line on standard output, and the ready file when one was asked for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "actors/settings.hpp"

namespace althing::actors {

// Where a server is to be found. All are HOST:PORT but the first and the last; "" for what there is not.
struct ServedAt {
  std::string endpoint, metrics, http, http_metrics;
  std::string control;  // the socket that takes faults
};

// The file appears whole (written aside, then renamed) and holds {"endpoint", "metrics", "http", "http_metrics", "control", "pid"}. Errors: io.
Status announce(const ServeSettings& settings, const ServedAt& at);

// Such a file with other members; `path` "": none. Errors: io.
Status write_ready_file(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace althing::actors
