// `althing trace`: where the router sends every token of one request, as JSON lines and as heat maps; by a running server, or in this process.
#pragma once

#include <string>

#include "actors/commands/connect.hpp"
#include "actors/commands/generate.hpp"
#include "actors/commands/trace_lines.hpp"

namespace althing::actors {

struct TraceSettings {
  ConnectSettings server;
  GenerateSettings here;  // its prompt and ask, and where engine.model names a folder, all of it: no server
  std::string heat_map;   // SVG file; "" for none
  std::uint32_t top_m = default_trace_top_m;
};

// Exit codes: 0, or that of the error's class.
int run_trace(const TraceSettings& settings);

}  // namespace althing::actors
