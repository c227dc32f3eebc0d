// What the live page and `althing top` show of a server once a second, as one small JSON object (docs/page.md describes each member). Figures only:
// no text of any request is in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "monitoring/traffic_window.hpp"

namespace althing::monitoring {

struct RankFigures {
  std::string state;  // serving; joining: it is there and its membership is not complete; silent: no progress for a second; absent
  std::uint64_t epoch = 0;
  std::uint32_t dp_group = 0;
  std::vector<std::uint32_t> experts;  // ids it holds in every layer, ascending
  std::uint32_t kv_pages_used = 0;     // of its group's pool, which is the same on all of the group's ranks
  std::uint32_t kv_pages = 0;
  std::uint64_t progress_age_ms = 0;  // since it last showed progress; means nothing while it is absent
};

struct LiveFigures {
  std::string model, version, instance, state;
  double uptime_seconds = 0;  // of the core
  std::uint64_t epoch = 0;
  std::uint32_t dp = 0, tp = 0, ep = 0;
  std::uint32_t ranks_wanted = 0;
  std::vector<RankFigures> ranks;
  std::uint32_t spares = 0, quarantined = 0;
  bool degraded = false;
  std::uint32_t running = 0, waiting = 0;
  std::uint64_t newest_event = 0;
};

std::string to_json(const LiveFigures& figures, const TrafficWindow& traffic);

// Ascending numbers as ranges: 0-3,7.
std::string ranges_of(const std::vector<std::uint32_t>& numbers);

}  // namespace althing::monitoring
