// The registry behind Metrics. Every series is made in the constructor and found again by index, so no call hashes a label and the set of series
// does not grow while serving, but for those of a new tenant, which are bounded: what a scrape costs at most is known at start.
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
#include <utility>
#include <vector>

namespace althing::monitoring {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Clock = std::chrono::steady_clock;
using Bounds = Histogram::BucketBoundaries;

constexpr std::size_t state_count = 5;
constexpr std::size_t outcome_count = 4;  // of FinishReason
constexpr std::array<std::string_view, 5> failure_causes = {"exit", "frozen", "stuck", "error", "other"};
constexpr std::array<std::string_view, 8> recoveries_by = {"respawn", "spare", "replica", "shrink", "grow", "start", "epoch", "other"};
constexpr std::array<std::string_view, 6> fault_causes = {"exit", "frozen", "stuck", "stalled", "error", "other"};
constexpr std::array<std::string_view, 6> phase_names = {"detect", "agree", "weights", "join", "recompute", "resume"};
constexpr std::array<std::string_view, 2> record_outcomes = {"written", "lost"};
constexpr std::array<std::string_view, 3> handshake_results = {"accepted", "denied", "malformed"};
constexpr std::array<std::string_view, 2> read_outcomes = {"taken", "refused"};
constexpr std::size_t model_name_max = 64;
constexpr std::array<std::string_view, 2> page_paths = {"/metrics", "/metrics/experts"};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// At most 13 bounds each: with +Inf that makes 14 buckets.
Bounds request_bounds() { return {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}; }
Bounds first_token_bounds() { return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60}; }
Bounds token_bounds() { return {0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 2}; }
Bounds recovery_bounds() { return {0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30, 60}; }
Bounds phase_bounds() { return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10}; }
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
std::vector<Histogram*> phase_histograms(Registry& registry) {
  auto& phases = prometheus::BuildHistogram().Name("althing_recovery_phase_seconds").Help("What recoveries consisted of.").Register(registry);
  std::vector<Histogram*> all;
  for (const std::string_view phase : phase_names) all.push_back(&phases.Add({{"phase", std::string(phase)}}, phase_bounds()));
  return all;
}
std::vector<Counter*> repair_counters(Registry& registry, const std::vector<std::string>& kinds) {
  return counters(registry, "althing_harmony_repairs_total", "Times that malformed output of the model was mended.", "kind", kinds.size(),
                  [&](std::size_t i) { return kinds[i]; });
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

void register_build_info(Registry& registry, const MetricsConfig& config) {
  auto& family = prometheus::BuildGauge().Name("althing_build_info").Help("1, with what runs here as labels.").Register(registry);
  family.Add({{"version", printable(config.version)}, {"model", printable(config.model)}}).Set(1);
}

// The registry gives counters first, then gauges, then histograms, and the series of a family as its hash table has them: an order that another build
// would change. Two scrapes of anything are lines in the same order.
void sort_by_name(std::vector<prometheus::MetricFamily>& families) {
  const auto labels = [](const prometheus::ClientMetric& metric) {
    // Numbers (ranks, layers) by value: a shorter text first, as they have no leading zeros.
    std::vector<std::pair<std::size_t, std::string_view>> key;
    for (const auto& label : metric.label)
      key.emplace_back(label.value.find_first_not_of("0123456789") == std::string::npos ? label.value.size() : 0, label.value);
    return key;
  };
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (prometheus::MetricFamily& family : families)
    std::sort(family.metric.begin(), family.metric.end(), [&](const auto& a, const auto& b) { return labels(a) < labels(b); });
}

std::size_t series_of(const prometheus::ClientMetric& metric, prometheus::MetricType type) {
  return type == prometheus::MetricType::Histogram ? metric.histogram.bucket.size() + 2 : 1;  // and _sum and _count
}

std::uint64_t whole(const Counter& counter) { return static_cast<std::uint64_t>(counter.Value()); }

BucketCounts buckets_of(const Histogram& histogram) {
  BucketCounts counts;
  for (const auto& bucket : histogram.Collect().histogram.bucket) {
    if (std::isfinite(bucket.upper_bound)) counts.bounds.push_back(bucket.upper_bound);
    counts.cumulative.push_back(bucket.cumulative_count);
  }
  return counts;
}

// One a pair, row by row.
std::vector<Counter*> fault_counters(prometheus::Registry& registry) {
  auto& family = prometheus::BuildCounter().Name("althing_faults_total").Help("Faults recovered from.").Register(registry);
  std::vector<Counter*> all;
  for (const std::string_view cause : fault_causes)
    for (const std::string_view by : recoveries_by) all.push_back(&family.Add({{"cause", std::string(cause)}, {"recovered_by", std::string(by)}}));
  return all;
}

}  // namespace

struct ClientCounters {
  explicit ClientCounters(Registry& registry)
      : sessions(gauge(registry, "althing_sessions", "Clients connected.")),
        door_closed(counter(registry, "althing_door_closed_total", "Times that no descriptor was left for clients.")),
        handshakes(counters(registry, "althing_zap_requests_total", "Handshakes of clients with keys that were decided about.", "result",
                            handshake_results.size(), [](std::size_t i) { return handshake_results[i]; })),
        list_reads(counters(registry, "althing_allow_list_reads_total", "Times that the list of keys had changed and was read again.", "outcome",
                            read_outcomes.size(), [](std::size_t i) { return read_outcomes[i]; })) {}
  Gauge& sessions;
  Counter& door_closed;
  std::vector<Counter*> handshakes, list_reads;  // by handshake_results, read_outcomes
};

struct Metrics::State {
  explicit State(const MetricsConfig& config);
  bool seconds_ok(double seconds);
  void observe(Histogram& target, double seconds);
  const std::uint32_t ranks;
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
  Counter& preemptions_for_share;
  std::atomic<std::uint64_t> preemptions_seen{0};
  // Ranks and membership.
  std::vector<Gauge*> states, rank_up, last_step;  // by ServerState, rank, rank
  std::vector<Counter*> rank_failures;             // by failure_causes
  Gauge& epoch;
  Counter& recoveries;
  Histogram& recovery;
  Counter& core_restarts;
  Histogram& core_recovery;
  std::vector<Counter*> faults;  // by fault_causes and recoveries_by
  Gauge &spares, &quarantined, &degraded;
  std::vector<Histogram*> recovery_phase;  // by phase_names
  KvTotals kv;
  // Accounting.
  Counter &device_seconds, &device_unattributed;
  std::vector<Counter*> usage_records;  // written, lost
  TenantTotals tenants;
  // The edge and the cost of the pages.
  std::vector<Counter*> frames_refused;  // by ErrorCode
  std::vector<Counter*> repairs;         // by config.repair_kinds
  ClientCounters clients;
  std::vector<Gauge*> series, scrape_seconds;  // by page_paths
  Counter& reports_refused;

  // Guards what follows, and makes a state change or a report one event for a scrape: it never sees two states or half a report.
  mutable std::mutex mutex;
  ServerState state = ServerState::starting;
  Clock::time_point recovering_since;

  ExpertMonitor experts;  // has a lock of its own
};

Metrics::State::State(const MetricsConfig& config)
    : ranks(config.ranks),
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
      step_tokens(counter(registry, "althing_step_tokens_total",
                          "Tokens computed by accepted engine steps, prompt and generated; tokens computed again count again.")),
      running(gauge(registry, "althing_requests_running", "Requests that hold a row of the batch.")),
      waiting(gauge(registry, "althing_requests_waiting", "Accepted requests without a row.")),
      kv_blocks(gauge(registry, "althing_kv_blocks", "Pages in the KV pool.")),
      kv_blocks_used(gauge(registry, "althing_kv_blocks_used", "Pages of the KV pool in use.")),
      preemptions(counter(registry, "althing_preemptions_total", "Times a running request gave its pages back and waited again.")),
      preemptions_for_share(
          counter(registry, "althing_preemptions_for_share_total", "Of these: another tenant had less than its share of rows or pages.")),
      states(gauges(registry, "althing_state", "1 for the state the server is in, 0 for the others.", "state", state_count,
                    [](std::size_t i) { return name_of(static_cast<ServerState>(i)); })),
      rank_up(gauges(registry, "althing_rank_up", "1 while the rank is a member.", "rank", ranks, number_name)),
      last_step(gauges(registry, "althing_last_step_timestamp_seconds", "Unix time of the rank's last step.", "rank", ranks, number_name)),
      rank_failures(counters(registry, "althing_rank_failures_total", "Ranks lost.", "cause", failure_causes.size(),
                             [](std::size_t i) { return failure_causes[i]; })),
      epoch(gauge(registry, "althing_membership_epoch", "Number of the current membership of ranks.")),
      recoveries(counter(registry, "althing_recoveries_total", "Times serving resumed after ranks were lost.")),
      recovery(histogram(registry, "althing_recovery_seconds", "From the loss of a rank to serving again.", recovery_bounds())),
      core_restarts(counter(registry, "althing_core_restarts_total", "Times the core process died and was started again.")),
      core_recovery(
          histogram(registry, "althing_core_recovery_seconds", "From a core's death to the next token of a stream that it left.", recovery_bounds())),
      faults(fault_counters(registry)),
      spares(gauge(registry, "althing_spares", "Loaded processes that can take a lost rank's place at once.")),
      quarantined(gauge(registry, "althing_quarantined", "Ranks left out for a while because they died too often.")),
      degraded(gauge(registry, "althing_degraded", "1 while fewer ranks serve than were asked for.")),
      kv(registry, ranks),
      device_seconds(counter(registry, "althing_device_seconds_total", "Time of accepted steps times the ranks that took part.")),
      device_unattributed(counter(registry, "althing_device_unattributed_seconds_total", "Of althing_device_seconds_total, for no request.")),
      usage_records(counters(registry, "althing_usage_records_total", "Lines of the usage log.", "outcome", record_outcomes.size(),
                             [](std::size_t i) { return record_outcomes[i]; })),
      tenants(registry, config.tenants_max),
      frames_refused(counters(registry, "althing_frames_refused_total", "Client frames that were refused.", "reason", error_code_count, error_name)),
      clients(registry),
      series(gauges(registry, "althing_series", "Series on the page.", "path", page_paths.size(), [](std::size_t i) { return page_paths[i]; })),
      scrape_seconds(gauges(registry, "althing_scrape_seconds", "Time the previous scrape of the page took.", "path", page_paths.size(),
                            [](std::size_t i) { return page_paths[i]; })),
      reports_refused(counter(registry, "althing_reports_refused_total", "Numbers given to the metrics that could not be.")),
      experts({{config.ranks, config.layers, config.experts, config.experts_per_token},
               config.expert_capacity_factor,
               config.expert_metrics,
               config.expert_series_max,
               config.weights}) {
  register_build_info(registry, config);
  repairs = repair_counters(registry, config.repair_kinds);
  recovery_phase = phase_histograms(registry);
  states[static_cast<std::size_t>(state)]->Set(1);
  std::size_t count = experts.summary(now()).series;
  for (const auto& family : registry.Collect())
    for (const auto& metric : family.metric) count += series_of(metric, family.type);
  series.front()->Set(static_cast<double>(count));
}

bool Metrics::State::seconds_ok(double seconds) {
  const bool ok = std::isfinite(seconds) && seconds >= 0;
  if (!ok) reports_refused.Increment();
  return ok;
}

void Metrics::State::observe(Histogram& target, double seconds) {
  if (seconds_ok(seconds)) target.Observe(seconds);
}

Metrics::Metrics(const MetricsConfig& config) : state_(std::make_unique<State>(config)) {}
Metrics::~Metrics() = default;

void Metrics::state(ServerState state, bool grown) {
  const std::lock_guard lock(state_->mutex);
  if (state == state_->state) return;
  if (state == ServerState::recovering) state_->recovering_since = Clock::now();
  if (state == ServerState::ready && state_->state == ServerState::recovering && !grown) {
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

ServerState Metrics::state() const {
  const std::lock_guard lock(state_->mutex);
  return state_->state;
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

void Metrics::preempted_for_share() { state_->preemptions_for_share.Increment(); }

void Metrics::expert_layout(std::uint64_t epoch, ExpertPlaces places) {
  if (!state_->experts.layout(epoch, std::move(places))) state_->reports_refused.Increment();
}

void Metrics::step_counts(std::string_view counts) {
  if (!state_->experts.step(counts, now())) state_->reports_refused.Increment();
}

void Metrics::expert_tokens(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens) {
  if (!state_->experts.report(rank, layer_major_tokens, now())) state_->reports_refused.Increment();
}

void Metrics::mirror(const KvTotals::Mirror& mirror) {
  const std::lock_guard lock(state_->mutex);
  state_->kv.mirror(mirror);
}

void Metrics::prefixes(const KvTotals::Prefixes& prefixes) {
  const std::lock_guard lock(state_->mutex);
  state_->kv.prefixes(prefixes);
}

void Metrics::guesses(const KvTotals::Guesses& guesses) {
  const std::lock_guard lock(state_->mutex);
  state_->kv.guesses(guesses);
}

void Metrics::mirror_pages(std::uint32_t rank, std::span<const std::uint64_t> counts) {
  if (rank >= state_->ranks || (!counts.empty() && counts.size() != KvTotals::rank_fates)) return state_->reports_refused.Increment();
  const std::lock_guard lock(state_->mutex);
  state_->kv.rank_pages(rank, counts);
}

void Metrics::rank_up(std::uint32_t rank, bool up) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  state_->experts.rank_up(rank, up);
  state_->rank_up[rank]->Set(up ? 1 : 0);
}

void Metrics::rank_failed(std::uint32_t rank, std::string_view cause) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  const std::lock_guard lock(state_->mutex);
  const auto known = std::find(failure_causes.begin(), failure_causes.end() - 1, cause);
  state_->rank_failures[static_cast<std::size_t>(known - failure_causes.begin())]->Increment();
  state_->experts.rank_lost(rank);
  state_->kv.rank_failed(rank);
}

void Metrics::membership(std::uint32_t spares, std::uint32_t quarantined, bool degraded) {
  state_->spares.Set(spares);
  state_->quarantined.Set(quarantined);
  state_->degraded.Set(degraded ? 1 : 0);
}

void Metrics::fault(std::string_view cause, std::string_view recovered_by, std::span<const double> phase_seconds) {
  if (phase_seconds.size() != phase_names.size()) return state_->reports_refused.Increment();
  const std::lock_guard lock(state_->mutex);
  const auto known = std::find(fault_causes.begin(), fault_causes.end() - 1, cause);
  const auto by = std::find(recoveries_by.begin(), recoveries_by.end() - 1, recovered_by);
  const auto row = static_cast<std::size_t>(known - fault_causes.begin());
  state_->faults[row * recoveries_by.size() + static_cast<std::size_t>(by - recoveries_by.begin())]->Increment();
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase) state_->observe(*state_->recovery_phase[phase], phase_seconds[phase]);
}

void Metrics::epoch(std::uint64_t epoch) { state_->epoch.Set(static_cast<double>(epoch)); }
void Metrics::core_restarts(std::uint64_t total) {
  const double counted = state_->core_restarts.Value();
  if (static_cast<double>(total) > counted) state_->core_restarts.Increment(static_cast<double>(total) - counted);
}
void Metrics::core_recovered(double seconds) { state_->observe(state_->core_recovery, seconds); }
void Metrics::device_time(double seconds, double unattributed_seconds) {
  if (!state_->seconds_ok(seconds) || !state_->seconds_ok(unattributed_seconds)) return;
  state_->device_seconds.Increment(seconds);
  state_->device_unattributed.Increment(unattributed_seconds);
}
void Metrics::tenant_usage(std::string_view tenant, const TenantUsage& usage) {
  state_->series.front()->Increment(static_cast<double>(state_->tenants.add(tenant, usage)));
}
void Metrics::usage_record(bool written) { state_->usage_records[written ? 0 : 1]->Increment(); }
void Metrics::repaired(std::size_t kind, std::uint32_t count) {
  if (kind < state_->repairs.size()) state_->repairs[kind]->Increment(count);
}
void Metrics::handshake(std::size_t result) { state_->clients.handshakes[std::min(result, handshake_results.size() - 1)]->Increment(); }
void Metrics::allow_list_read(bool taken) { state_->clients.list_reads[taken ? 0 : 1]->Increment(); }
void Metrics::frame_refused(ErrorCode code) { state_->frames_refused[static_cast<std::size_t>(code)]->Increment(); }
void Metrics::door_closed() { state_->clients.door_closed.Increment(); }
void Metrics::sessions(std::uint32_t open) { state_->clients.sessions.Set(open); }

void Metrics::progress(std::uint32_t rank, double unix_seconds) {
  if (rank >= state_->ranks) return state_->reports_refused.Increment();
  if (state_->seconds_ok(unix_seconds)) state_->last_step[rank]->Set(unix_seconds);
}

Traffic Metrics::traffic() const {
  Traffic traffic;
  traffic.prompt_tokens = whole(state_->prompt_tokens);
  traffic.generated_tokens = whole(state_->generation_tokens);
  for (const Counter* outcome : state_->finished) traffic.requests_ended += whole(*outcome);
  traffic.first_token = buckets_of(state_->first_token);
  traffic.inter_token = buckets_of(state_->inter_token);
  return traffic;
}

Metrics::Members Metrics::members() const {
  const auto number = [](const Gauge& gauge) { return static_cast<std::uint32_t>(gauge.Value()); };
  return {number(state_->spares), number(state_->quarantined), number(state_->degraded) != 0};
}

std::string Metrics::scrape() const {
  const double start = now();
  std::vector<prometheus::MetricFamily> families;
  {
    const std::lock_guard lock(state_->mutex);
    families = state_->registry.Collect();
  }
  sort_by_name(families);
  const ExpertPage experts = state_->experts.summary(now());
  // Two sorted lists of families into one.
  std::ostringstream text;
  std::size_t next = 0;
  const auto put_experts_before = [&](std::string_view name) {
    for (; next < experts.families.size() && (name.empty() || experts.families[next].first < name); ++next) {
      const std::size_t from = experts.families[next].second;
      const std::size_t to = next + 1 < experts.families.size() ? experts.families[next + 1].second : experts.text.size();
      text << std::string_view(experts.text).substr(from, to - from);
    }
  };
  const prometheus::TextSerializer serializer;
  for (const prometheus::MetricFamily& family : families) {
    put_experts_before(family.name);
    serializer.Serialize(text, {family});
  }
  put_experts_before({});
  state_->scrape_seconds.front()->Set(now() - start);
  return std::move(text).str();
}

ExpertPage Metrics::scrape_experts() const {
  const double start = now();
  ExpertPage page = state_->experts.all(start);
  state_->series.back()->Set(static_cast<double>(page.series));
  state_->scrape_seconds.back()->Set(now() - start);
  return page;
}
std::string Metrics::usage_json() const { return state_->tenants.json(); }
std::string Metrics::experts_json() const { return state_->experts.json(now()); }

}  // namespace althing::monitoring
