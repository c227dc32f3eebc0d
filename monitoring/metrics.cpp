// The registry behind Metrics. Every series is made in the constructor and found again by index, so no call hashes a label and the set of series
// never grows while serving: what a scrape costs is known at start.
// Invariant: sum of althing_requests_total over outcomes <= althing_requests_accepted_total, equal once nothing is running or waiting.
#include "monitoring/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <sstream>
#include <vector>

#include "monitoring/expert_load.hpp"

namespace althing::monitoring {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Clock = std::chrono::steady_clock;
using Bounds = Histogram::BucketBoundaries;

constexpr std::size_t state_count = 4;
constexpr std::array<std::string_view, state_count> state_names = {"starting", "ready", "recovering", "draining"};
constexpr std::size_t outcome_count = 4;  // of FinishReason
constexpr std::array<std::string_view, 4> failure_causes = {"exit", "frozen", "error", "other"};
constexpr std::size_t model_name_max = 64;

// At most 13 bounds each: with +Inf that makes 14 buckets.
Bounds request_bounds() { return {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}; }
Bounds first_token_bounds() { return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60}; }
Bounds token_bounds() { return {0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 2}; }
Bounds recovery_bounds() { return {0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30, 60}; }
Bounds event_bounds() { return {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2}; }

Counter& counter(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}
Gauge& gauge(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
Histogram& histogram(Registry& registry, const char* name, const char* help, const Bounds& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

// One counter for each value of an enumeration, in its order.
template <class NameOf>
std::vector<Counter*> counters(Registry& registry, const char* name, const char* help, const char* label, std::size_t count, NameOf name_of_index) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  std::vector<Counter*> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(&family.Add({{label, std::string(name_of_index(i))}}));
  return all;
}
template <class NameOf>
std::vector<Gauge*> gauges(Registry& registry, const char* name, const char* help, const char* label, std::size_t count, NameOf name_of_index) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  std::vector<Gauge*> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(&family.Add({{label, std::string(name_of_index(i))}}));
  return all;
}

std::string number_name(std::size_t i) { return std::to_string(i); }
std::string_view error_name(std::size_t i) { return name_of(static_cast<ErrorCode>(i)); }
std::string_view outcome_name(std::size_t i) { return name_of(static_cast<FinishReason>(i)); }

std::string printable(std::string_view text) {
  std::string out(text.substr(0, model_name_max));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '_');
  return out;
}

std::size_t series_of(const prometheus::ClientMetric& metric, prometheus::MetricType type) {
  return type == prometheus::MetricType::Histogram ? metric.histogram.bucket.size() + 2 : 1;  // and _sum and _count
}

}  // namespace

struct Metrics::State {
  explicit State(const MetricsConfig& config);
  bool seconds_ok(double seconds);
  void observe(Histogram& target, double seconds);
  void publish_expert_load();

  const std::uint32_t ranks, layers;
  Registry registry;

  // Requests.
  Counter &accepted, &prompt_tokens, &generation_tokens;
  std::vector<Counter*> finished, rejected, request_errors;  // by FinishReason, ErrorCode, ErrorCode
  Histogram &first_token, &inter_token, &request, &queue;
  // The engine and its scheduler.
  Histogram &step, &scheduler_event;
  Counter& step_tokens;
  Gauge &running, &waiting, &kv_blocks, &kv_blocks_used;
  Counter& preemptions;
  std::atomic<std::uint64_t> preemptions_seen{0};
  // Ranks and membership.
  std::vector<Gauge*> states, rank_up, last_step;  // by ServerState, rank, rank
  std::vector<Counter*> rank_failures;             // by failure_causes
  Gauge& epoch;
  Counter& recoveries;
  Histogram& recovery;
  // Experts.
  std::vector<Counter*> layer_rank_tokens;  // (layers, ranks)
  std::vector<Gauge*> imbalance, idle;      // by layer
  // The edge and the cost of this page.
  std::vector<Counter*> frames_refused;  // by ErrorCode
  Gauge &sessions, &series, &scrape_seconds;
  Counter& reports_refused;

  // Guards what follows, and makes a state change or a report one event for a scrape: it never sees two states or half a report.
  mutable std::mutex mutex;
  ServerState state = ServerState::starting;
  Clock::time_point recovering_since;
  ExpertLoad experts;
  std::vector<bool> up, reported;  // by rank
};

Metrics::State::State(const MetricsConfig& config)
    : ranks(config.ranks),
      layers(config.layers),
      accepted(counter(registry, "althing_requests_accepted_total", "Requests admitted; each ends once in althing_requests_total.")),
      prompt_tokens(counter(registry, "althing_prompt_tokens_total", "Prompt tokens of accepted requests.")),
      generation_tokens(counter(registry, "althing_generation_tokens_total", "Tokens generated.")),
      finished(counters(registry, "althing_requests_total", "Accepted requests that ended.", "outcome", outcome_count, outcome_name)),
      rejected(counters(registry, "althing_requests_rejected_total", "Requests refused at admission.", "reason", error_code_count, error_name)),
      request_errors(counters(registry, "althing_request_errors_total", "Accepted requests that ended in error or were cancelled.", "class",
                              error_code_count, error_name)),
      first_token(histogram(registry, "althing_time_to_first_token_seconds", "From the submit frame to the first token.", first_token_bounds())),
      inter_token(histogram(registry, "althing_inter_token_seconds", "Between two tokens of one stream.", token_bounds())),
      request(histogram(registry, "althing_request_seconds", "From accepted to the end of the request.", request_bounds())),
      queue(histogram(registry, "althing_queue_seconds", "From accepted to the first step that held the request.", first_token_bounds())),
      step(histogram(registry, "althing_step_seconds", "One engine step, from plan to result.", token_bounds())),
      scheduler_event(histogram(registry, "althing_scheduler_event_seconds", "Time the scheduler core took for one event.", event_bounds())),
      step_tokens(counter(registry, "althing_step_tokens_total", "Tokens computed by engine steps, prompt and generated.")),
      running(gauge(registry, "althing_requests_running", "Requests that hold a row of the batch.")),
      waiting(gauge(registry, "althing_requests_waiting", "Accepted requests without a row.")),
      kv_blocks(gauge(registry, "althing_kv_blocks", "Pages in the KV pool.")),
      kv_blocks_used(gauge(registry, "althing_kv_blocks_used", "Pages of the KV pool in use.")),
      preemptions(counter(registry, "althing_preemptions_total", "Times a running request gave its pages back and waited again.")),
      states(gauges(registry, "althing_state", "1 for the state the server is in, 0 for the others.", "state", state_count,
                    [](std::size_t i) { return state_names[i]; })),
      rank_up(gauges(registry, "althing_rank_up", "1 while the rank is a member.", "rank", ranks, number_name)),
      last_step(gauges(registry, "althing_last_step_timestamp_seconds", "Unix time of the rank's last step.", "rank", ranks, number_name)),
      rank_failures(counters(registry, "althing_rank_failures_total", "Ranks lost.", "cause", failure_causes.size(),
                             [](std::size_t i) { return failure_causes[i]; })),
      epoch(gauge(registry, "althing_membership_epoch", "Number of the current membership of ranks.")),
      recoveries(counter(registry, "althing_recoveries_total", "Times serving resumed after ranks were lost.")),
      recovery(histogram(registry, "althing_recovery_seconds", "From the loss of a rank to serving again.", recovery_bounds())),
      imbalance(gauges(registry, "althing_expert_imbalance_ratio", "Largest over mean tokens per expert in the recent window; 0 before any token.",
                       "layer", layers, number_name)),
      idle(gauges(registry, "althing_expert_idle", "Experts without a token in the recent window.", "layer", layers, number_name)),
      frames_refused(counters(registry, "althing_frames_refused_total", "Client frames that were refused.", "reason", error_code_count, error_name)),
      sessions(gauge(registry, "althing_sessions", "Clients connected.")),
      series(gauge(registry, "althing_series", "Series on this page.")),
      scrape_seconds(gauge(registry, "althing_scrape_seconds", "Time the previous scrape of this page took.")),
      reports_refused(counter(registry, "althing_reports_refused_total", "Numbers given to the metrics that could not be.")),
      experts({config.ranks, config.layers, config.experts}),
      up(ranks),
      reported(ranks) {
  prometheus::BuildGauge()
      .Name("althing_build_info")
      .Help("1, with what runs here as labels.")
      .Register(registry)
      .Add({{"version", printable(config.version)}, {"model", printable(config.model)}})
      .Set(1);
  auto& tokens =
      prometheus::BuildCounter().Name("althing_layer_rank_tokens_total").Help("Tokens taken by the experts of a layer on a rank.").Register(registry);
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      layer_rank_tokens.push_back(&tokens.Add({{"layer", std::to_string(layer)}, {"rank", std::to_string(rank)}}));
  states[static_cast<std::size_t>(state)]->Set(1);
  std::size_t count = 0;
  for (const auto& family : registry.Collect())
    for (const auto& metric : family.metric) count += series_of(metric, family.type);
  series.Set(static_cast<double>(count));
}

bool Metrics::State::seconds_ok(double seconds) {
  const bool ok = std::isfinite(seconds) && seconds >= 0;
  if (!ok) reports_refused.Increment();
  return ok;
}

void Metrics::State::observe(Histogram& target, double seconds) {
  if (seconds_ok(seconds)) target.Observe(seconds);
}

// REQUIRES: mutex is held. Waits until every member has reported, so that no rank's experts look idle only because another rank spoke first.
void Metrics::State::publish_expert_load() {
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    if (up[rank] && !reported[rank]) return;
  reported.assign(ranks, false);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const LayerLoad load = experts.load(layer);
    imbalance[layer]->Set(load.imbalance);
    idle[layer]->Set(load.experts_idle);
  }
}

Metrics::Metrics(const MetricsConfig& config) : state_(std::make_unique<State>(config)) {}
Metrics::~Metrics() = default;

void Metrics::state(ServerState state) {
  const std::lock_guard lock(state_->mutex);
  if (state == state_->state) return;
  if (state == ServerState::recovering) state_->recovering_since = Clock::now();
  if (state == ServerState::ready && state_->state == ServerState::recovering) {
    state_->recoveries.Increment();
    state_->recovery.Observe(std::chrono::duration<double>(Clock::now() - state_->recovering_since).count());
  }
  state_->states[static_cast<std::size_t>(state_->state)]->Set(0);
  state_->states[static_cast<std::size_t>(state)]->Set(1);
  state_->state = state;
}

void Metrics::request_accepted(std::uint32_t prompt_tokens) {
  state_->accepted.Increment();
  state_->prompt_tokens.Increment(prompt_tokens);
}

void Metrics::request_rejected(ErrorCode code) { state_->rejected[static_cast<std::size_t>(code)]->Increment(); }

void Metrics::request_finished(FinishReason reason, ErrorCode code, double seconds) {
  state_->finished[static_cast<std::size_t>(reason)]->Increment();
  if (reason == FinishReason::error || reason == FinishReason::cancelled) state_->request_errors[static_cast<std::size_t>(code)]->Increment();
  state_->observe(state_->request, seconds);
}

void Metrics::first_token(double seconds) { state_->observe(state_->first_token, seconds); }
void Metrics::inter_token(double seconds) { state_->observe(state_->inter_token, seconds); }
void Metrics::queue_wait(double seconds) { state_->observe(state_->queue, seconds); }
void Metrics::generated(std::uint32_t tokens) { state_->generation_tokens.Increment(tokens); }

void Metrics::step(double seconds, std::uint32_t tokens) {
  state_->observe(state_->step, seconds);
  state_->step_tokens.Increment(tokens);
}

void Metrics::scheduler_step(double seconds) { state_->observe(state_->scheduler_event, seconds); }

void Metrics::scheduler(std::uint32_t running, std::uint32_t waiting, std::uint32_t pages_used, std::uint32_t pages_total,
                        std::uint64_t preemptions_total) {
  state_->running.Set(running);
  state_->waiting.Set(waiting);
  state_->kv_blocks.Set(pages_total);
  state_->kv_blocks_used.Set(pages_used);
  // Only the call that moves the maximum adds the difference, so two callers never count one preemption twice.
  std::uint64_t seen = state_->preemptions_seen.load();
  while (preemptions_total > seen && !state_->preemptions_seen.compare_exchange_weak(seen, preemptions_total)) {
  }
  if (preemptions_total > seen) state_->preemptions.Increment(static_cast<double>(preemptions_total - seen));
}

void Metrics::expert_tokens(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens) {
  const std::lock_guard lock(state_->mutex);
  const auto gained = state_->experts.report(rank, layer_major_tokens);
  if (rank >= state_->ranks || gained.size() != state_->layers) return state_->reports_refused.Increment();
  for (std::size_t layer = 0; layer < gained.size(); ++layer)
    state_->layer_rank_tokens[layer * state_->ranks + rank]->Increment(static_cast<double>(gained[layer]));
  state_->reported[rank] = true;
  state_->publish_expert_load();
}

void Metrics::rank_up(std::uint32_t rank, bool up) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  const std::lock_guard lock(state_->mutex);
  state_->up[rank] = up;
  state_->rank_up[rank]->Set(up ? 1 : 0);
}

void Metrics::rank_failed(std::uint32_t rank, std::string_view cause) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  const std::lock_guard lock(state_->mutex);
  const auto known = std::find(failure_causes.begin(), failure_causes.end() - 1, cause);
  state_->rank_failures[static_cast<std::size_t>(known - failure_causes.begin())]->Increment();
  state_->experts.rank_lost(rank);
}

void Metrics::epoch(std::uint64_t epoch) { state_->epoch.Set(static_cast<double>(epoch)); }
void Metrics::frame_refused(ErrorCode code) { state_->frames_refused[static_cast<std::size_t>(code)]->Increment(); }
void Metrics::sessions(std::uint32_t open) { state_->sessions.Set(open); }

void Metrics::progress(std::uint32_t rank, double unix_seconds) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  if (state_->seconds_ok(unix_seconds)) state_->last_step[rank]->Set(unix_seconds);
}

std::string Metrics::scrape() const {
  const Clock::time_point start = Clock::now();
  std::vector<prometheus::MetricFamily> families;
  {
    const std::lock_guard lock(state_->mutex);
    families = state_->registry.Collect();
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  state_->scrape_seconds.Set(std::chrono::duration<double>(Clock::now() - start).count());
  return std::move(text).str();
}

}  // namespace althing::monitoring
