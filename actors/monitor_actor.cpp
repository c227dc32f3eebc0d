// Readiness: see the header.
#include "actors/monitor_actor.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "actors/guard.hpp"
#include "monitoring/live_figures.hpp"
#include "scheduler/placement.hpp"

namespace althing::actors {
namespace {

constexpr std::uint64_t progress_age_ms_max = 1000;
constexpr std::chrono::milliseconds beat_interval{100};
constexpr std::chrono::milliseconds sample_interval{950};  // once a second, on a beat

std::uint64_t silent_ms(const MonitorState& state) {
  const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - state.heard).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, silence));
}

// One judgement for both who ask: /ready and the metric never contradict each other for longer than a beat.
monitoring::ServerState judge(const MonitorState& state) {
  using monitoring::ServerState;
  if (state.report.draining) return ServerState::draining;
  if (!state.report.ready) return state.ever_ready ? ServerState::recovering : ServerState::starting;
  const std::uint64_t silent = silent_ms(state);
  const auto stalls = [&](std::optional<std::uint64_t> age) { return !age || *age + silent > progress_age_ms_max; };
  const auto& ages = state.report.rank_age_ms;
  return stalls(0) || std::any_of(ages.begin(), ages.end(), stalls) ? ServerState::silent : ServerState::ready;
}

ReadinessAnswer answer(const MonitorState& state) {
  const monitoring::ServerState verdict = judge(state);
  const std::uint64_t silent = silent_ms(state);
  std::string ranks;
  for (std::size_t rank = 0; rank < state.report.rank_age_ms.size(); ++rank) {
    const std::optional<std::uint64_t> age = state.report.rank_age_ms[rank];
    ranks += (rank == 0 ? "" : ",") + std::string("{\"rank\":") + std::to_string(rank) + ",\"state\":\"" + (age ? "present" : "absent") +
             "\",\"progress_age_ms\":" + (age ? std::to_string(*age + silent) : "null") + "}";
  }
  return {verdict == monitoring::ServerState::ready, "{\"state\":\"" + std::string(monitoring::name_of(verdict)) + "\",\"epoch\":" +
                                                         std::to_string(state.report.epoch) + ",\"running\":" + std::to_string(state.report.running) +
                                                         ",\"waiting\":" + std::to_string(state.report.waiting) + ",\"ranks\":[" + ranks + "]}\n"};
}

// What a rank does, as far as anybody can tell from here.
std::string state_of(const MonitorState& state, std::size_t rank) {
  const std::optional<std::uint64_t> age = state.report.rank_age_ms[rank];
  if (!age) return "absent";
  if (!state.report.ready) return "joining";
  return *age + silent_ms(state) > progress_age_ms_max ? "silent" : "serving";
}

std::vector<monitoring::RankFigures> ranks_of(const MonitorState& state) {
  const StatusReport& report = state.report;
  std::vector<monitoring::RankFigures> ranks;
  const auto placements = scheduler::place(report.grid, state.options.shape);
  for (std::size_t rank = 0; rank < std::min(report.rank_epoch.size(), report.rank_age_ms.size()); ++rank) {
    monitoring::RankFigures figures{
        state_of(state, rank), report.rank_epoch[rank], 0, {}, 0, 0, report.rank_age_ms[rank].value_or(0) + silent_ms(state)};
    if (placements && rank < placements->size()) {
      figures.dp_group = (*placements)[rank].dp_group.value;
      for (const HeldExpert& held : (*placements)[rank].experts) figures.experts.push_back(held.expert.value);
    }
    if (figures.dp_group < report.pools.size()) {
      figures.kv_pages_used = report.pools[figures.dp_group].used;
      figures.kv_pages = report.pools[figures.dp_group].total;
    }
    ranks.push_back(std::move(figures));
  }
  return ranks;
}

LiveAnswer live(const MonitorState& state) {
  const MonitorOptions& options = state.options;
  const StatusReport& report = state.report;
  monitoring::LiveFigures figures;
  figures.model = options.model;
  figures.version = ALTHING_VERSION;
  figures.instance = options.instance;
  figures.state = monitoring::name_of(judge(state));
  figures.uptime_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - state.started).count();
  figures.epoch = report.epoch;
  figures.dp = report.grid.dp;
  figures.tp = report.grid.tp;
  figures.ep = report.grid.ep;
  figures.ranks_wanted = options.ranks_wanted;
  figures.ranks = ranks_of(state);
  const auto members = options.metrics->members();
  figures.spares = members.spares;
  figures.quarantined = members.quarantined;
  figures.degraded = members.degraded;
  figures.running = report.running;
  figures.waiting = report.waiting;
  figures.newest_event = options.events ? options.events->newest() : 0;
  return {monitoring::to_json(figures, state.traffic)};
}

void sample(MonitorState& state) {
  const auto now = std::chrono::steady_clock::now();
  if (now - state.sampled < sample_interval) return;
  state.sampled = now;
  state.traffic.add(std::chrono::duration<double>(now - state.started).count(), state.options.metrics->traffic());
}

}  // namespace

caf::behavior monitor_actor(caf::stateful_actor<MonitorState>* self, MonitorOptions options) {
  guard(self);
  MonitorState& first = self->state;
  first.started = first.heard = std::chrono::steady_clock::now();
  first.ever_ready = options.follows;
  first.options = std::move(options);
  sample(first);
  self->delayed_send(self, beat_interval, tick_beat_v);
  return {
      [=](StatusReport& report) {
        MonitorState& state = self->state;
        state.report = std::move(report);
        state.heard = std::chrono::steady_clock::now();
        state.ever_ready = state.ever_ready || state.report.ready;
        state.options.metrics->state(judge(state), state.report.grown);
      },
      [=](const CountingUnder& under) {
        const MonitorOptions& o = self->state.options;
        if (o.places_of) o.metrics->expert_layout(under.epoch, o.places_of(under.grid));
      },
      [=](const StepCounted& step) { self->state.options.metrics->step_counts(step.counts); },
      // Silence is no message, so somebody must look.
      [=](tick_beat) {
        self->state.options.metrics->state(judge(self->state), self->state.report.grown);
        sample(self->state);
        self->delayed_send(self, beat_interval, tick_beat_v);
      },
      [=](const ReadinessQuery&) { return answer(self->state); },
      [=](const LiveQuery&) { return live(self->state); },
  };
}

}  // namespace althing::actors
