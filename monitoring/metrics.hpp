// Every number that Prometheus sees. The rest of the program calls these plain functions; prometheus-cpp stays behind them. All labels are bounded:
// none comes from user input. Thread-safe; the calls cost nanoseconds, but for state, rank_failed and expert_tokens, which take a lock that a
// scrape holds for a millisecond: those belong on control paths. Numbers that cannot be (NaN, negative seconds, a rank out of range) change nothing
// but althing_reports_refused_total.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/events.hpp"

namespace althing::monitoring {

struct MetricsConfig {
  std::string version;
  std::string model;  // shown in althing_build_info, cut to 64 characters
  std::uint32_t ranks = 1;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
};

enum class ServerState : std::uint8_t { starting, ready, recovering, draining };

class Metrics {
 public:
  explicit Metrics(const MetricsConfig& config);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void state(ServerState state);  // recovering → ready also counts a recovery and how long it took
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
  // Cumulative counts of the tokens that this rank's own experts took, (layers, experts), since its process started. Counters stay monotone across
  // restarts of the rank: a smaller count, or the first report after rank_failed, starts a new run.
  void expert_tokens(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens);
  void rank_up(std::uint32_t rank, bool up);
  void rank_failed(std::uint32_t rank, std::string_view cause);  // exit, frozen, error; anything else counts as other
  void epoch(std::uint64_t epoch);
  void frame_refused(ErrorCode code);
  void sessions(std::uint32_t open);
  void progress(std::uint32_t rank, double unix_seconds);

  // Prometheus text format 0.0.4.
  std::string scrape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace althing::monitoring
