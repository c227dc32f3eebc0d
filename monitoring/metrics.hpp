// Every number that Prometheus sees. The rest of the program calls these plain functions; prometheus-cpp stays behind them. All labels are bounded:
// the only ones from outside are the names of the first so many tenants (tenant_totals.hpp). Thread-safe; the calls cost nanoseconds, but for state,
// rank_failed, fault and those about experts, which take a lock that a scrape holds for a millisecond: those belong off the path of steps. Numbers
// that cannot be (NaN, negative seconds, a rank out of range) change nothing but althing_reports_refused_total.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "monitoring/expert_monitor.hpp"
#include "monitoring/kv_totals.hpp"
#include "monitoring/tenant_totals.hpp"
#include "monitoring/traffic_window.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/events.hpp"

namespace althing::monitoring {

struct MetricsConfig {
  std::string version;
  std::string model;  // shown in althing_build_info, cut to 64 characters
  std::uint32_t ranks = 1;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 1;
  double expert_capacity_factor = 1.25;
  bool expert_metrics = false;  // the page with a series an expert
  std::uint32_t expert_series_max = 20'000;
  std::uint32_t tenants_max = 50;  // with series of their own
  WeightSizes weights{};
  std::vector<std::string> repair_kinds{};  // of malformed output; labels
};

// silent: every rank is there, but one of them, or the scheduler, shows no progress, so nothing may be promised.
enum class ServerState : std::uint8_t { starting, ready, silent, recovering, draining };

constexpr std::string_view name_of(ServerState state) {
  constexpr std::string_view names[] = {"starting", "ready", "silent", "recovering", "draining"};
  return names[static_cast<int>(state)];
}

class Metrics {
 public:
  explicit Metrics(const MetricsConfig& config);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // recovering → ready also counts a recovery and how long it took, unless nothing was lost, and the membership has only grown.
  void state(ServerState state, bool grown = false);
  ServerState state() const;
  void request_accepted(std::uint32_t prompt_tokens);
  void request_rejected(ErrorCode code);
  void request_finished(FinishReason reason, ErrorCode code, double seconds);  // code is used when reason is error or cancelled
  void first_token(double seconds);                                            // since the submit frame came in
  void inter_token(double seconds);
  void queue_wait(double seconds);  // from accepted to the first step that held the request
  void generated(std::uint32_t tokens);
  void step(double seconds, std::uint32_t tokens);  // one engine step, from plan to result
  void scheduler_step(double seconds);              // time the core itself took for one event
  void scheduler(std::uint32_t running, std::uint32_t waiting, std::uint32_t pages_used, std::uint32_t pages_total, std::uint64_t preemptions_total);
  void preempted_for_share();  // of the preemptions above: another tenant had less than its share
  // A new membership: steps that are counted from now on were computed by experts in these places.
  void expert_layout(std::uint64_t epoch, ExpertPlaces places);
  // StepResult::counts of a step that the scheduler accepted, each once.
  void step_counts(std::string_view counts);
  // Where results carry no counts: cumulative counts of the tokens that this rank's own experts took, (layers, experts), since its process started.
  // Counters stay monotone across restarts of the rank: a smaller count, or the first report after rank_failed, starts a new run.
  void expert_tokens(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens);
  void mirror(const KvTotals::Mirror& mirror);
  void prefixes(const KvTotals::Prefixes& prefixes);
  void guesses(const KvTotals::Guesses& guesses);
  // Cumulative counts of this rank's pages since its process started: copied, skipped, restored, missing, corrupt. Monotone like expert_tokens.
  void mirror_pages(std::uint32_t rank, std::span<const std::uint64_t> counts);
  void rank_up(std::uint32_t rank, bool up);
  void rank_failed(std::uint32_t rank, std::string_view cause);  // exit, frozen, stuck, error; anything else counts as other
  // A fault that was recovered from, once: its cause as above or `stalled`, how (respawn, spare, replica, shrink, grow, start, epoch), and the
  // seconds of the phases detect, agree, weights, join, recompute, resume.
  void fault(std::string_view cause, std::string_view recovered_by, std::span<const double> phase_seconds);
  // Members that could take a lost rank's place at once, ranks that died too often and are left out, and whether fewer ranks serve than were asked
  // for.
  void membership(std::uint32_t spares, std::uint32_t quarantined, bool degraded);
  void epoch(std::uint64_t epoch);
  void core_restarts(std::uint64_t total);  // since the server started; counters of a new core start at 0, this one does not
  void core_recovered(double seconds);      // from a core's death to the next token of a stream that it left
  // The ranks' time of one accepted step, and how much of it was spent for no request.
  void device_time(double seconds, double unattributed_seconds);
  // What an accepted request has used, once, when it has ended.
  void tenant_usage(std::string_view tenant, const TenantUsage& usage);
  void usage_record(bool written);  // its line in the usage log
  void frame_refused(ErrorCode code);
  // Malformed output was mended `count` times; `kind` is one of config.repair_kinds, others are left out.
  void repaired(std::size_t kind, std::uint32_t count);
  void handshake(std::size_t result);  // where clients have keys: 0 let in, 1 turned away, 2 a question that could not be read
  void allow_list_read(bool taken);    // it had changed; false: it was wrong, and the one before stays
  void sessions(std::uint32_t open);
  void door_closed();  // no descriptors were left for connections of clients
  void progress(std::uint32_t rank, double unix_seconds);

  // What the live page shows of all this.
  Traffic traffic() const;
  struct Members {
    std::uint32_t spares = 0, quarantined = 0;
    bool degraded = false;
  };
  Members members() const;

  // Prometheus text format 0.0.4.
  std::string scrape() const;
  ExpertPage scrape_experts() const;  // the same, with a series an expert
  std::string experts_json() const;
  std::string usage_json() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace althing::monitoring
