// The actors of the core, built in order and taken down in the reverse order. Shared by the core process and by --in-process.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <functional>
#include <memory>
#include <string>

#include "actors/engine_setup.hpp"
#include "actors/scheduler_actor.hpp"
#include "monitoring/http_endpoint.hpp"
#include "monitoring/metrics.hpp"
#include "protocol/harmony/format.hpp"

namespace althing::actors {

class CoreActors {
 public:
  // Hooks of SchedulerOptions.
  struct Hooks {
    std::function<void(std::uint64_t, const std::vector<std::uint32_t>&, const std::string&)> report_failure;
    std::function<void(std::uint64_t)> on_ready;
    std::function<void()> on_drained;
  };

  // Binds both endpoints first, so that a port in use is an error before anything runs.
  static Result<std::unique_ptr<CoreActors>> start(caf::actor_system& system, const ServeSettings& settings, const EngineSetup& setup, Hooks hooks);
  // Ends the actors and waits for them.
  ~CoreActors();

  const caf::actor& scheduler() const { return scheduler_; }
  const std::string& endpoint() const { return endpoint_; }
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  explicit CoreActors(caf::actor_system& system) : system_(system) {}

  caf::actor_system& system_;
  std::shared_ptr<monitoring::Metrics> metrics_;
  caf::actor monitor_, scheduler_, gateway_;
  std::unique_ptr<monitoring::HttpEndpoint> http_;
  std::string endpoint_, metrics_address_;
};

}  // namespace althing::actors
