// See the header.
#include "actors/ready_file.hpp"
#include "monitoring/json_line.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace althing::actors {

Status announce(const ServeSettings& settings, const std::string& endpoint, const std::string& metrics, const std::string& control) {
  std::printf("serving %s on %s", (settings.load.empty() ? settings.model : settings.load).c_str(), endpoint.c_str());
  if (!metrics.empty()) std::printf(", http://%s/ (live page) /metrics /live /ready", metrics.c_str());
  std::printf("\n");
  std::fflush(stdout);
  if (settings.ready_file.empty()) return Ok{};
  const std::string aside = settings.ready_file + ".tmp" + std::to_string(::getpid());
  const std::string text = "{\"endpoint\":\"" + endpoint + "\",\"metrics\":\"" + metrics + "\",\"control\":\"" + monitoring::json_escaped(control) +
                           "\",\"pid\":" + std::to_string(::getpid()) + "}\n";
  std::FILE* file = std::fopen(aside.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file == nullptr || std::fclose(file) == 0;
  if (!written || !closed || std::rename(aside.c_str(), settings.ready_file.c_str()) != 0)
    return Error{ErrorCode::io, "cannot write the ready file " + settings.ready_file + ": " + std::strerror(errno), "ready-file"};
  return Ok{};
}

}  // namespace althing::actors
