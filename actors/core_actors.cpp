// Start order: sockets, monitor, scheduler, gateway, HTTP. The end is the reverse.
#include "actors/core_actors.hpp"

#include <algorithm>
#include <caf/scoped_actor.hpp>
#include <future>
#include <random>
#include <utility>

#include "actors/accountant.hpp"
#include "actors/gateway_actor.hpp"
#include "actors/logging.hpp"
#include "actors/monitor_actor.hpp"
#include "actors/page_chat.hpp"
#include "gpu/model_account.hpp"
#include "protocol/harmony/recovery.hpp"
#include "scheduler/journal.hpp"
#include "scheduler/placement.hpp"

namespace althing::actors {
namespace {

// Null when no core died before this one.
std::shared_ptr<CoreRecovery> recovery_of(const CoreActors::Past& past, const std::shared_ptr<monitoring::Metrics>& metrics) {
  const TokenLog::TakenOver& taken = past.taken;
  if (taken.core_deaths == 0) return nullptr;
  CoreRecovery::Found found{taken.core_deaths, taken.died_ns, past.started_ns, 0, 0, taken.damaged, taken.given_up};
  for (const LoggedStream& stream : taken.streams) ++(stream.read.computed() ? found.finished : found.open);
  return std::make_shared<CoreRecovery>(metrics, found);
}

// What the monitor answers, or `otherwise` when it does not within half a second.
template <class Answer, class Query>
Answer ask(caf::actor_system& system, const caf::actor& monitor, Query query, Answer otherwise) {
  caf::scoped_actor self{system};
  self->request(monitor, std::chrono::milliseconds(500), std::move(query))
      .receive([&](Answer& answer) { otherwise = std::move(answer); }, [](const caf::error&) {});
  return otherwise;
}

monitoring::HttpHandlers http_handlers(caf::actor_system& system, std::shared_ptr<monitoring::Metrics> metrics, caf::actor monitor,
                                       std::shared_ptr<const monitoring::EventRing> events, std::shared_ptr<PageChat> chat) {
  const std::string unresponsive = "{\"state\":\"unresponsive\"}\n";
  monitoring::HttpHandlers handlers;
  handlers.metrics = [metrics] { return metrics->scrape(); };
  handlers.experts = [metrics] { return metrics->scrape_experts(); };
  handlers.experts_json = [metrics] { return metrics->experts_json(); };
  handlers.usage_json = [metrics] { return metrics->usage_json(); };
  handlers.ready = [&system, monitor, unresponsive]() -> monitoring::Readiness {
    ReadinessAnswer answer = ask(system, monitor, ReadinessQuery{}, ReadinessAnswer{false, unresponsive});
    return {answer.ready, std::move(answer.json)};
  };
  handlers.live = [&system, monitor, unresponsive]() -> monitoring::Readiness {
    LiveAnswer answer = ask(system, monitor, LiveQuery{}, LiveAnswer{});
    return answer.json.empty() ? monitoring::Readiness{false, unresponsive} : monitoring::Readiness{true, std::move(answer.json)};
  };
  handlers.events = [events = std::move(events)](std::uint64_t after) { return events->json_after(after); };
  handlers.chat = [chat = std::move(chat)](const std::string& body, monitoring::EventReader& reader) { return chat->answer(body, reader); };
  return handlers;
}

// Ranks of a DP group share attention's heads and all ranks the head; router and norms are whole on each.
monitoring::WeightSizes weight_sizes(const EngineSetup& setup) {
  gpu::ReadFormat format;
  format.dense = setup.dense;
  const gpu::ModelAccount account = gpu::account_of(setup.model->spec, format);
  const auto bytes = [&](gpu::ModelPart part) { return account.of(part).read_bytes; };
  const std::uint64_t chosen = std::uint64_t{account.layers} * account.experts_per_token;
  return {chosen == 0 ? 0 : bytes(gpu::ModelPart::experts) / chosen,
          setup.grid.dp * bytes(gpu::ModelPart::attention) + setup.grid.world * (bytes(gpu::ModelPart::router) + bytes(gpu::ModelPart::norms)) +
              bytes(gpu::ModelPart::head)};
}

monitoring::MetricsConfig metrics_config(const ServeSettings& settings, const EngineSetup& setup) {
  const gpu::DecoderSpec& spec = setup.model->spec;
  monitoring::MetricsConfig config{ALTHING_VERSION, model_name(settings), settings.ranks, static_cast<std::uint32_t>(spec.layers.size()),
                                   spec.experts};
  for (const gpu::DecoderLayer& layer : spec.layers)
    config.experts_per_token = std::max(config.experts_per_token, layer.moe.router.experts_per_token);
  config.expert_capacity_factor = settings.expert_capacity_factor;
  config.expert_metrics = settings.expert_metrics;
  config.expert_series_max = settings.expert_series_max;
  config.tenants_max = settings.tenants_max;
  config.weights = weight_sizes(setup);
  for (std::size_t kind = 0; kind < protocol::harmony::repair_kinds; ++kind)
    config.repair_kinds.emplace_back(name_of(static_cast<protocol::harmony::Repair>(kind)));
  return config;
}

PlacesOf places_in(const ModelShape& shape) {
  return [shape](const Grid& grid) {
    monitoring::ExpertPlaces places;
    const auto placements = scheduler::place(grid, shape);
    if (!placements) return places;
    for (const auto& copies : scheduler::expert_table(*placements, shape.experts)) {
      places.emplace_back();
      for (const scheduler::ExpertPlace& copy : copies) places.back().push_back({copy.rank.value, copy.slot.value});
    }
    return places;
  };
}

Result<AccountantOptions> accountant_options(const ServeSettings& settings, std::shared_ptr<monitoring::Metrics> metrics) {
  auto prices = read_prices(settings.cost_file);
  if (!prices) return prices.error();
  AccountantOptions options{std::move(metrics), *prices, nullptr};
  if (settings.usage_log.empty()) return options;
  auto log = UsageLog::open(settings.usage_log);
  if (!log) return log.error();
  options.log = std::move(*log);
  return options;
}

std::uint64_t experts_of_a_token(const gpu::DecoderSpec& spec) {
  std::uint64_t sum = 0;
  for (const gpu::DecoderLayer& layer : spec.layers) sum += layer.moe.router.experts_per_token;
  return sum;
}

// Takes what a dead core left.
GatewayOptions gateway_options(const ServeSettings& settings, CoreActors::Past& past, const std::optional<protocol::wire::RouterKeys>& keys) {
  GatewayOptions gateway;
  gateway.model = model_name(settings);
  gateway.instance = past.taken.instance;
  if (keys) gateway.ring = keys->ring;
  gateway.keyless_gateway = !settings.http.empty();
  for (LoggedStream& stream : past.taken.streams) gateway.left.push_back(std::make_shared<LoggedStream>(std::move(stream)));
  return gateway;
}

std::function<void(std::uint64_t)> telling(std::shared_ptr<CoreRecovery> recovery, std::function<void(std::uint64_t)> on_ready) {
  if (!recovery) return on_ready;
  return [recovery = std::move(recovery), on_ready = std::move(on_ready)](std::uint64_t epoch) {
    recovery->ready();
    if (on_ready) on_ready(epoch);
  };
}

}  // namespace

std::string random_instance() {
  std::random_device device;
  char text[40];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

Result<std::unique_ptr<CoreActors>> CoreActors::start(caf::actor_system& system, const ServeSettings& settings, const EngineSetup& setup, Hooks hooks,
                                                      Past past) {
  auto format = chat_format(settings);
  if (!format) return format.error();
  std::unique_ptr<CoreActors> core(new CoreActors(system));
  core->metrics_ = std::make_shared<monitoring::Metrics>(metrics_config(settings, setup));
  auto keys = core->start_keys(settings.curve_allow, past.keys);
  if (!keys) return keys.error();
  auto bound = protocol::wire::RouterSocket::bind(settings.bind, setup.limits, *keys);
  if (!bound) return bound.error();
  core->endpoint_ = bound->endpoint();
  const auto recovery = recovery_of(past, core->metrics_);
  if (recovery) recovery->on_told = hooks.on_core_recovered;
  core->monitor_ = system.spawn(monitor_actor, MonitorOptions{core->metrics_, recovery != nullptr, core->events_, model_name(settings),
                                                              past.taken.instance, settings.ranks, setup.shape(), places_in(setup.shape())});
  if (Status http = settings.metrics.empty() ? Status(Ok{}) : core->start_http(settings.metrics, setup.limits); !http) return http.error();

  SchedulerOptions options;
  options.core = setup.core_config();
  options.salts = PrefixSalts::drawn(settings.prefix_sharing != "all");
  options.ranks = settings.ranks;
  options.kv_of = [setup](const Grid& grid) -> Result<KvShape> {
    auto other = with_grid(setup, grid);
    if (!other) return other.error();
    return other->kv_shape();
  };
  options.step_timeout = std::chrono::milliseconds(settings.step_timeout_ms);
  if (!settings.journal.empty()) {
    auto journal = JournalFile::open(settings.journal, scheduler::journal_header() + "\n" + scheduler::to_config_line(options.core) + "\n");
    if (!journal) return journal.error();
    options.journal = std::move(*journal);
  }
  options.metrics = core->metrics_;
  options.monitor = core->monitor_;
  auto accounting = accountant_options(settings, core->metrics_);
  if (!accounting) return accounting.error();
  core->accountant_ = system.spawn<caf::detached>(accountant_actor, std::move(*accounting));
  options.accountant = core->accountant_;
  options.experts_of_a_token = experts_of_a_token(setup.model->spec);
  options.report_failure = std::move(hooks.report_failure);
  options.on_ready = telling(recovery, std::move(hooks.on_ready));
  options.on_drained = std::move(hooks.on_drained);
  options.on_resumed = std::move(hooks.on_resumed);
  options.on_step = std::move(hooks.on_step);
  if (hooks.pulse) options.on_beat = [pulse = hooks.pulse] { pulse->scheduler_round(); };
  // Checked here once more, because an actor cannot refuse to be spawned.
  if (auto probe = scheduler::Core::create(options.core); !probe) return probe.error();
  core->scheduler_ = system.spawn(scheduler_actor, std::move(options));
  auto shared = std::make_shared<FrontendShared>();
  shared->format = std::move(*format);
  shared->stop_tokens = setup.stop_tokens(shared->format);
  shared->limits = setup.limits;
  shared->metrics = core->metrics_;
  shared->scheduler = core->scheduler_;
  shared->token_log = std::move(past.taken.log);
  shared->recovery = recovery;
  if (!setup.script) shared->grammars = std::make_shared<protocol::grammar::GrammarLibrary>(shared->format.tokenizer(), setup.model->spec.vocabulary);
  GatewayOptions gateway = gateway_options(settings, past, *keys);
  gateway.pulse = hooks.pulse;
  // Whatever the caller says to the scheduler next, drain for one, must find them there.
  auto restored = std::make_shared<std::promise<void>>();
  gateway.on_restored = [restored] { restored->set_value(); };
  core->gateway_ = system.spawn<Gateway, caf::detached>(std::move(*bound), std::move(shared), std::move(gateway));
  restored->get_future().wait();
  return core;
}

// A list that cannot be read now ends no core: nobody but the page comes in until it can be.
Result<std::optional<protocol::wire::RouterKeys>> CoreActors::start_keys(const std::string& allow_list, const std::optional<DoorKeys>& keys) {
  if (!keys) return std::optional<protocol::wire::RouterKeys>();
  leave_memory_out_of_core_dumps();
  auto inside = keys->client_keys();
  if (!inside) return inside.error();
  inside_keys_ = std::move(*inside);
  auto list = read_allow_list(allow_list);
  if (!list) log(LogLevel::error, "allow_list_unread", {{"reason", list.error().message}});
  const protocol::curve::AllowList own{keys->inside_entry()};
  auto ring = std::make_shared<protocol::curve::KeyRing>(list ? *list : protocol::curve::AllowList(), own);
  keys_watch_ = std::make_unique<AllowListWatch>(allow_list, ring, [metrics = metrics_](bool taken) { metrics->allow_list_read(taken); });
  const auto count = [metrics = metrics_](protocol::curve::ZapResult result) { metrics->handshake(static_cast<std::size_t>(result)); };
  return std::optional(protocol::wire::RouterKeys{keys->server, keys->inside, std::move(ring), count});
}

void CoreActors::reload_keys() {
  if (keys_watch_) keys_watch_->reload();
}

Status CoreActors::start_http(const std::string& address, const Limits& limits) {
  auto chat = std::make_shared<PageChat>(endpoint_, limits, inside_keys_);
  auto http = monitoring::HttpEndpoint::start(address, http_handlers(system_, metrics_, monitor_, events_, std::move(chat)));
  if (!http) return Error{http.error().code, http.error().message + " (--metrics)", "metrics"};
  http_ = std::move(*http);
  metrics_address_ = http_->address();
  return Ok{};
}

CoreActors::~CoreActors() {
  http_.reset();
  caf::scoped_actor self{system_};
  // What it ends reaches the clients before the gateway has gone.
  if (scheduler_) self->send(scheduler_, stop_atom_v);
  for (const caf::actor& actor : {gateway_, scheduler_, monitor_, accountant_}) {
    if (!actor) continue;
    // An exit would overtake records that wait.
    if (actor == accountant_) self->request(actor, std::chrono::seconds(1), flush_beat_v).receive([](bool) {}, [](const caf::error&) {});
    self->send_exit(actor, caf::exit_reason::user_shutdown);
    self->wait_for(actor);
  }
}

}  // namespace althing::actors
