// Readiness: see the header.
#include "actors/monitor_actor.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "actors/guard.hpp"

namespace althing::actors {
namespace {

constexpr std::uint64_t progress_age_ms_max = 1000;

ReadinessAnswer answer(const MonitorState& state) {
  const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - state.heard).count();
  const auto silent_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(0, silence));
  std::string word = "ready";
  std::string ranks;
  for (std::size_t rank = 0; rank < state.report.rank_age_ms.size(); ++rank) {
    const std::uint64_t age = state.report.rank_age_ms[rank] + silent_ms;
    if (age > progress_age_ms_max) word = "stalled";
    ranks += (rank == 0 ? "" : ",") + std::string("{\"rank\":") + std::to_string(rank) + ",\"progress_age_ms\":" + std::to_string(age) + "}";
  }
  if (silent_ms > progress_age_ms_max) word = "stalled";
  if (!state.report.ready) word = state.ever_ready ? "recovering" : "starting";
  if (state.report.draining) word = "draining";
  return {word == "ready", "{\"state\":\"" + word + "\",\"epoch\":" + std::to_string(state.report.epoch) +
                               ",\"running\":" + std::to_string(state.report.running) + ",\"waiting\":" + std::to_string(state.report.waiting) +
                               ",\"ranks\":[" + ranks + "]}\n"};
}

}  // namespace

caf::behavior monitor_actor(caf::stateful_actor<MonitorState>* self, std::shared_ptr<monitoring::Metrics> metrics) {
  guard(self);
  self->state.metrics = std::move(metrics);
  self->state.heard = std::chrono::steady_clock::now();
  return {
      [=](StatusReport& report) {
        MonitorState& state = self->state;
        state.report = std::move(report);
        state.heard = std::chrono::steady_clock::now();
        state.ever_ready = state.ever_ready || state.report.ready;
        using monitoring::ServerState;
        state.metrics->state(state.report.draining ? ServerState::draining
                             : state.report.ready  ? ServerState::ready
                             : state.ever_ready    ? ServerState::recovering
                                                   : ServerState::starting);
      },
      [=](const ReadinessQuery&) { return answer(self->state); },
  };
}

}  // namespace althing::actors
