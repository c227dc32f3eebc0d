// The monitor knows whether the server makes progress: it hears the scheduler's reports and answers readiness queries. No report for a second, or a
// rank without progress for a second, means not ready, whatever anybody claims. What the live page shows comes from the same judgement. It also adds
// up what accepted steps did at the experts, in the order in which the scheduler accepted them.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "actors/messages.hpp"
#include "monitoring/event_ring.hpp"
#include "monitoring/metrics.hpp"
#include "monitoring/traffic_window.hpp"

namespace althing::actors {

// Where the ranks of a grid hold the experts.
using PlacesOf = std::function<monitoring::ExpertPlaces(const Grid&)>;

struct MonitorOptions {
  std::shared_ptr<monitoring::Metrics> metrics;
  // Another core was ready before this one and died, so until there are ranks the server recovers, it does not start.
  bool follows = false;
  // For the live page.
  std::shared_ptr<const monitoring::EventRing> events = nullptr;  // null: none happen
  std::string model{}, instance{};
  std::uint32_t ranks_wanted = 0;
  ModelShape shape{};
  PlacesOf places_of = nullptr;  // null where no step is counted
};

struct MonitorState {
  static inline const char* name = "monitor";
  MonitorOptions options;
  StatusReport report;
  std::chrono::steady_clock::time_point started, heard, sampled;
  bool ever_ready = false;
  monitoring::TrafficWindow traffic;
};

caf::behavior monitor_actor(caf::stateful_actor<MonitorState>* self, MonitorOptions options);

}  // namespace althing::actors
