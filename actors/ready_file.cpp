// See the header.
#include "actors/ready_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "monitoring/json_line.hpp"

namespace althing::actors {

Status announce(const ServeSettings& settings, const ServedAt& at) {
  std::printf("serving %s on %s", (settings.load.empty() ? settings.model : settings.load).c_str(), at.endpoint.c_str());
  if (!at.http.empty()) std::printf(", http://%s/v1", at.http.c_str());
  if (!at.metrics.empty()) std::printf(", http://%s/ (live page) /metrics /live /ready", at.metrics.c_str());
  std::printf("\n");
  std::fflush(stdout);
  return write_ready_file(
      settings.ready_file,
      {{"endpoint", at.endpoint}, {"metrics", at.metrics}, {"http", at.http}, {"http_metrics", at.http_metrics}, {"control", at.control}});
}

Status write_ready_file(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members) {
  if (path.empty()) return Ok{};
  const std::string aside = path + ".tmp" + std::to_string(::getpid());
  std::string text = "{";
  for (const auto& [name, value] : members) text += "\"" + name + "\":\"" + monitoring::json_escaped(value) + "\",";
  text += "\"pid\":" + std::to_string(::getpid()) + "}\n";
  std::FILE* file = std::fopen(aside.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file == nullptr || std::fclose(file) == 0;
  if (!written || !closed || std::rename(aside.c_str(), path.c_str()) != 0)
    return Error{ErrorCode::io, "cannot write the ready file " + path + ": " + std::strerror(errno), "ready-file"};
  return Ok{};
}

}  // namespace althing::actors
