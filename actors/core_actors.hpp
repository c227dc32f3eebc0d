// The actors of the core, built in order and taken down in the reverse order. Shared by the core process and by --in-process.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/allow_list_watch.hpp"
#include "actors/core_pulse.hpp"
#include "actors/core_recovery.hpp"
#include "actors/door_keys.hpp"
#include "actors/engine_setup.hpp"
#include "actors/scheduler_actor.hpp"
#include "actors/token_log.hpp"
#include "monitoring/event_ring.hpp"
#include "monitoring/http_endpoint.hpp"
#include "monitoring/metrics.hpp"
#include "protocol/harmony/format.hpp"
#include "protocol/wire/router_socket.hpp"

namespace althing::actors {

// 32 hexadecimal digits: a name for a serving process that no other has.
std::string random_instance();

class CoreActors {
 public:
  // Hooks of SchedulerOptions.
  struct Hooks {
    std::function<void(std::uint64_t, const std::vector<std::uint32_t>&, const std::string&)> report_failure;
    std::function<void(std::uint64_t)> on_ready;
    std::function<void()> on_drained;
    std::function<void(std::uint64_t, const ResumeWatch::Resumed&)> on_resumed;
    std::function<void()> on_step;
    // Not of it either: a core's death is over. May be null.
    std::function<void(double seconds, const CoreRecovery::Found& found)> on_core_recovered;
    std::shared_ptr<CorePulse> pulse;  // not a hook of it: where scheduler and gateway show that they go round; may be null
  };

  // Of the process: its token log, if it has one, with what a dead core left in it, when it began, and the keys that it was given.
  struct Past {
    TokenLog::TakenOver taken;
    std::uint64_t started_ns = 0;
    std::optional<DoorKeys> keys{};  // nullopt: clients need none
  };

  // Binds both endpoints first, so that a port in use is an error before anything runs.
  static Result<std::unique_ptr<CoreActors>> start(caf::actor_system& system, const ServeSettings& settings, const EngineSetup& setup, Hooks hooks,
                                                   Past past);
  // Ends the actors and waits for them.
  ~CoreActors();

  monitoring::Metrics& metrics() const { return *metrics_; }
  monitoring::EventRing& events() const { return *events_; }  // for the live page
  const caf::actor& scheduler() const { return scheduler_; }
  const std::string& endpoint() const { return endpoint_; }
  // Reads the list of keys that may come in again, if there is one.
  void reload_keys();
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  explicit CoreActors(caf::actor_system& system) : system_(system) {}
  Result<std::optional<protocol::wire::RouterKeys>> start_keys(const std::string& allow_list, const std::optional<DoorKeys>& keys);
  Status start_http(const std::string& address, const Limits& limits);

  caf::actor_system& system_;
  std::shared_ptr<monitoring::Metrics> metrics_;
  std::shared_ptr<monitoring::EventRing> events_ = std::make_shared<monitoring::EventRing>();
  caf::actor monitor_, scheduler_, gateway_, accountant_;
  std::unique_ptr<AllowListWatch> keys_watch_;
  std::shared_ptr<const protocol::curve::ClientKeys> inside_keys_;  // of the page's chat; null: it needs none
  std::unique_ptr<monitoring::HttpEndpoint> http_;
  std::string endpoint_, metrics_address_;
};

}  // namespace althing::actors
