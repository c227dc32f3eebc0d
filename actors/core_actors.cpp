// Start order: sockets, monitor, scheduler, gateway, HTTP. The end is the reverse.
#include "actors/core_actors.hpp"

#include <caf/scoped_actor.hpp>
#include <random>
#include <utility>

#include "actors/gateway_actor.hpp"
#include "actors/logging.hpp"
#include "actors/monitor_actor.hpp"
#include "scheduler/journal.hpp"

namespace althing::actors {
namespace {

std::string random_instance() {
  std::random_device device;
  char text[40];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

}  // namespace

Result<std::unique_ptr<CoreActors>> CoreActors::start(caf::actor_system& system, const ServeSettings& settings, const EngineSetup& setup,
                                                      Hooks hooks) {
  auto format = chat_format(settings);
  if (!format) return format.error();
  std::unique_ptr<CoreActors> core(new CoreActors(system));
  auto bound = protocol::wire::RouterSocket::bind(settings.bind, setup.limits);
  if (!bound) return bound.error();
  core->endpoint_ = bound->endpoint();

  const gpu::DecoderSpec& spec = setup.model->spec;
  core->metrics_ = std::make_shared<monitoring::Metrics>(
      monitoring::MetricsConfig{ALTHING_VERSION, model_name(settings), settings.ranks, static_cast<std::uint32_t>(spec.layers.size()), spec.experts});
  core->monitor_ = system.spawn(monitor_actor, core->metrics_);
  if (!settings.metrics.empty()) {
    monitoring::HttpHandlers handlers;
    handlers.metrics = [metrics = core->metrics_] { return metrics->scrape(); };
    handlers.ready = [&system, monitor = core->monitor_]() -> monitoring::Readiness {
      caf::scoped_actor self{system};
      monitoring::Readiness readiness{false, "{\"state\":\"unresponsive\"}\n"};
      self->request(monitor, std::chrono::milliseconds(500), ReadinessQuery{})
          .receive(
              [&](ReadinessAnswer& answer) {
                readiness = {answer.ready, std::move(answer.json)};
              },
              [](const caf::error&) {});
      return readiness;
    };
    auto http = monitoring::HttpEndpoint::start(settings.metrics, std::move(handlers));
    if (!http) return Error{http.error().code, http.error().message + " (--metrics)", "metrics"};
    core->http_ = std::move(*http);
    core->metrics_address_ = core->http_->address();
  }

  SchedulerOptions options;
  options.core = setup.core_config();
  options.ranks = settings.ranks;
  options.step_timeout = std::chrono::milliseconds(settings.step_timeout_ms);
  if (!settings.journal.empty()) {
    auto journal = JournalFile::open(settings.journal, scheduler::journal_header() + "\n" + scheduler::to_config_line(options.core) + "\n");
    if (!journal) return journal.error();
    options.journal = std::move(*journal);
  }
  options.metrics = core->metrics_;
  options.monitor = core->monitor_;
  options.report_failure = std::move(hooks.report_failure);
  options.on_ready = std::move(hooks.on_ready);
  options.on_drained = std::move(hooks.on_drained);
  // Checked here once more, because an actor cannot refuse to be spawned.
  if (auto probe = scheduler::Core::create(options.core); !probe) return probe.error();
  core->scheduler_ = system.spawn(scheduler_actor, std::move(options));

  auto shared = std::make_shared<FrontendShared>();
  shared->format = std::move(*format);
  shared->stop_tokens = setup.stop_tokens(shared->format);
  shared->limits = setup.limits;
  shared->metrics = core->metrics_;
  shared->scheduler = core->scheduler_;
  core->gateway_ =
      system.spawn<Gateway, caf::detached>(std::move(*bound), std::move(shared), GatewayOptions{model_name(settings), random_instance()});
  return core;
}

CoreActors::~CoreActors() {
  http_.reset();
  caf::scoped_actor self{system_};
  for (const caf::actor& actor : {gateway_, scheduler_, monitor_}) {
    if (!actor) continue;
    self->send_exit(actor, caf::exit_reason::user_shutdown);
    self->wait_for(actor);
  }
}

}  // namespace althing::actors
