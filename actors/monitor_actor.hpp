// The monitor knows whether the server makes progress: it hears the scheduler's reports and answers readiness queries. No report for a second, or a
// rank without progress for a second, means not ready, whatever anybody claims.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <memory>

#include "actors/messages.hpp"
#include "monitoring/metrics.hpp"

namespace althing::actors {

struct MonitorState {
  static inline const char* name = "monitor";
  std::shared_ptr<monitoring::Metrics> metrics;
  StatusReport report;
  std::chrono::steady_clock::time_point heard;
  bool ever_ready = false;
};

caf::behavior monitor_actor(caf::stateful_actor<MonitorState>* self, std::shared_ptr<monitoring::Metrics> metrics);

}  // namespace althing::actors
