// See the header. Numbers are put together when a page is asked for, so steps pay for sums only.
#include "monitoring/expert_monitor.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "monitoring/expert_pages.hpp"
#include "monitoring/expert_window.hpp"
#include "monitoring/rank_reports.hpp"

namespace althing::monitoring {

struct ExpertMonitor::State {
  explicit State(const ExpertMonitorConfig& settings)
      : config(settings),
        totals(settings.grid),
        window(settings.grid),
        reports(settings.grid.ranks, totals.expert_tokens().size()),
        unseen(totals.expert_tokens().size()),
        up(settings.grid.ranks),
        reported(settings.grid.ranks),
        at_closed(totals.rank_tokens()),
        at_current(totals.rank_tokens()) {}

  ExpertView view(double seconds, bool with_cells) const;
  void note_buckets();

  const ExpertMonitorConfig config;
  mutable std::mutex mutex;
  std::uint64_t epoch = 0, first_epoch = 0;  // 0: none yet
  ExpertTotals totals;
  ExpertWindow window;
  // Polled counts. The window hears of them when every member has reported, so that no rank's experts look idle only because another rank spoke
  // first.
  RankReports reports;
  std::vector<std::uint64_t> unseen;  // by the window, (layers, experts)
  std::vector<bool> up, reported;     // by rank
  // Tokens by layer and rank when the window's two buckets began.
  std::vector<std::uint64_t> at_closed, at_current;
  std::uint64_t buckets = 0;
};

// REQUIRES: mutex is held; totals and window have heard the same.
void ExpertMonitor::State::note_buckets() {
  if (window.buckets() == buckets) return;
  buckets = window.buckets();
  at_closed = std::exchange(at_current, totals.rank_tokens());
}

ExpertView ExpertMonitor::State::view(double seconds, bool with_cells) const {
  const std::lock_guard lock(mutex);
  ExpertView view;
  view.grid = config.grid;
  view.epoch = epoch;
  view.first_epoch = first_epoch;
  view.steps = totals.steps();
  view.tokens = totals.tokens();
  view.expert_bytes = totals.copies_met() * config.weights.expert;
  view.weight_bytes = view.expert_bytes + totals.steps() * config.weights.rest_of_model;
  view.whole_window = window.whole();
  view.window = window.tokens();
  view.rank_tokens = totals.rank_tokens();
  view.diverted = totals.diverted();
  view.rank_window = view.rank_tokens;
  for (std::size_t cell = 0; cell < at_closed.size(); ++cell) view.rank_window[cell] -= at_closed[cell];
  view.slots_held.assign(config.grid.ranks, 0);
  for (const auto& copies : totals.places())
    for (const ExpertPlace& place : copies) ++view.slots_held[place.rank];
  for (std::uint32_t layer = 0; layer < config.grid.layers; ++layer) {
    view.router.push_back(window.router(layer));
    view.active.push_back(window.active_experts(layer));
    view.saturation_minutes.push_back(window.saturation_minutes(layer, config.capacity_factor, seconds));
  }
  if (!with_cells) return view;
  view.expert_tokens = totals.expert_tokens();
  view.gate_weights = totals.gate_weights();
  view.slot_tokens = {totals.slot_tokens().begin(), totals.slot_tokens().end()};
  return view;
}

ExpertMonitor::ExpertMonitor(const ExpertMonitorConfig& config) : state_(std::make_unique<State>(config)) {}
ExpertMonitor::~ExpertMonitor() = default;

bool ExpertMonitor::layout(std::uint64_t epoch, ExpertPlaces places) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->totals.use_layout(std::move(places))) return false;
  state_->epoch = epoch;
  if (state_->first_epoch == 0) state_->first_epoch = epoch;
  return true;
}

bool ExpertMonitor::step(std::string_view counts, double seconds) {
  const auto step = read_step_counts(counts);
  if (!step) return false;
  const std::lock_guard lock(state_->mutex);
  if (!state_->totals.add(*step)) return false;
  state_->window.add(*step, seconds);
  state_->note_buckets();
  return true;
}

bool ExpertMonitor::report(std::uint32_t rank, std::span<const std::uint64_t> cumulative, double seconds) {
  const std::lock_guard lock(state_->mutex);
  const auto gained = state_->reports.gained(rank, cumulative);
  if (rank >= state_->reported.size() || gained.size() != state_->unseen.size()) return false;
  state_->totals.add_of_rank(rank, gained);
  for (std::size_t cell = 0; cell < gained.size(); ++cell) state_->unseen[cell] += gained[cell];
  state_->reported[rank] = true;
  for (std::size_t r = 0; r < state_->up.size(); ++r)
    if (state_->up[r] && !state_->reported[r]) return true;
  state_->window.add_tokens(state_->unseen, seconds);
  state_->note_buckets();
  std::fill(state_->unseen.begin(), state_->unseen.end(), 0);
  state_->reported.assign(state_->reported.size(), false);
  return true;
}

void ExpertMonitor::rank_up(std::uint32_t rank, bool up) {
  const std::lock_guard lock(state_->mutex);
  if (rank < state_->up.size()) state_->up[rank] = up;
}

void ExpertMonitor::rank_lost(std::uint32_t rank) {
  const std::lock_guard lock(state_->mutex);
  state_->reports.rank_lost(rank);
}

ExpertPage ExpertMonitor::summary(double seconds) const { return summary_page(state_->view(seconds, false)); }

ExpertPage ExpertMonitor::all(double seconds) const {
  if (!state_->config.all_experts)
    return {false,
            "there is no series an expert here: start the server with --expert-metrics (ALTHING_EXPERT_METRICS=1). /metrics has figures by layer, "
            "/experts.json has all counts\n",
            0};
  return all_experts_page(state_->view(seconds, true), state_->config.series_max);
}

std::string ExpertMonitor::json(double seconds) const { return experts_json(state_->view(seconds, true)); }

}  // namespace althing::monitoring
