// What the scheduler's shell says of itself a few times a second, to the monitor and to Prometheus, and what it asks of ranks meanwhile.
#include <chrono>
#include <utility>

#include "actors/scheduler_actor.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::milliseconds probe_interval{200};

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

void SchedulerShell::report() {
  const scheduler::CoreStats stats = core_->stats();
  options_.metrics->scheduler(stats.running, stats.waiting, stats.pages_used, stats.pages_total, stats.preemptions);
  options_.metrics->mirror({std::uint64_t{stats.mirror_slots_used} * shape_.layout.page_bytes * grid_.tp, stats.pages_unmirrored,
                            stats.tokens_restored, stats.tokens_recomputed});
  options_.metrics->prefixes(
      {stats.pages_cached, stats.prefix_pages_evicted, stats.prefix_hit_tokens, stats.prefix_miss_tokens, stats.prefix_misses});
  options_.metrics->guesses(
      {{stats.guessed_tokens - stats.drafted_tokens, stats.guessed_right - stats.drafted_right}, {stats.drafted_tokens, stats.drafted_right}});
  StatusReport status{epoch_usable_, stats.draining, epoch_, stats.running, stats.waiting, {}, grown_, grid_};
  for (const auto& pool : core_->pools()) status.pools.push_back({pool.used, pool.total});
  const double unix_seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    status.rank_epoch.push_back(ranks_[r].actor ? ranks_[r].epoch : 0);
    // Of a rank that is not there nothing is known: no age, and its last step stays when it was.
    if (!ranks_[r].actor) {
      status.rank_age_ms.emplace_back();
      continue;
    }
    const double age = seconds_since(ranks_[r].progress);
    status.rank_age_ms.emplace_back(static_cast<std::uint64_t>(age * 1000.0));
    options_.metrics->progress(r, unix_seconds - age);
  }
  if (options_.monitor) self_->send(options_.monitor, std::move(status));
}

void SchedulerShell::probe() {
  for (const Rank& rank : ranks_)
    if (rank.actor) self_->send(rank.pulse, Probe{now_ms()});
  report();
  self_->delayed_send(self_, probe_interval, probe_beat_v);
}

}  // namespace althing::actors
