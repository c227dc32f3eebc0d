// The shell's decisions: see the header. Where this file and actors/scheduler_actor.cpp differ, this one is wrong.
#include "tests/simulation/shell_model.hpp"

#include <algorithm>
#include <utility>

namespace althing::tests {
namespace {

constexpr Timeline::Time lost_message_wait_us = 600'000;
constexpr std::uint32_t steps_to_forget_strikes = 256, strikes_max = 6;
constexpr std::uint64_t invariants_every = 64;  // events

}  // namespace

ShellModel::ShellModel(Stage& stage, CoreJudge& judge, Links links, Plant plant)
    : stage_(stage),
      judge_(judge),
      links_(std::move(links)),
      plant_(plant),
      core_(stage.setup.core, plant, stage.dice.bits()),
      started_(stage.time.now()),
      ranks_(stage.setup.grids.front().world) {}

// Copied: carrying out an effect may feed the core again.
void ShellModel::feed(const Event& event) {
  stage_.note(events_, event.index());
  judge_.before(event);
  const std::vector<Effect> effects = core_.on(event);
  judge_.after(event, effects, core_.stats());
  if (++events_ % invariants_every == 0)
    if (auto broken = core_.core().check_invariants(); !broken.empty()) stage_.fail(broken);
  if (!stage_.broken.empty()) return;
  for (const Effect& effect : effects) perform(effect);
}

void ShellModel::perform(const Effect& effect) {
  if (const auto* run = std::get_if<RunStep>(&effect)) {
    for (const RowSetup& setup : run->plan.set)
      if (const auto it = live_.find(setup.request); it != live_.end()) it->second = true;
    pending_steps_[run->plan.step.value] = stage_.time.now();
    return links_.run_step(run->plan);
  }
  if (std::holds_alternative<Preempted>(effect)) return;
  if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) resume_.moved(drawn->request, clock());
  if (const auto* finished = std::get_if<Finished>(&effect)) {
    resume_.moved(finished->request, clock());
    live_.erase(finished->request);
  }
  links_.tell(effect);
  if (const auto* rejected = std::get_if<Rejected>(&effect)) {
    resume_.moved(rejected->request, clock());
    live_.erase(rejected->request);
  }
}

void ShellModel::submit(Submitted submitted, std::uint64_t timeout_ms) {
  for (std::uint32_t i = 0; i < submitted.choices; ++i) live_[RequestId{submitted.request.value + i}] = false;
  // Time passes for the core only by Ticked, and a deadline is on its clock.
  feed(Ticked{now_ms()});
  // Another core's stream was interrupted by its death.
  if (!submitted.drawn.empty()) {
    resume_.interrupted();
    resume_.interrupted(submitted.request);
  }
  if (timeout_ms > 0) submitted.deadline_ms = now_ms() + timeout_ms;
  feed(submitted);
  for (std::uint32_t i = 1; i < submitted.choices; ++i)
    if (!live_.contains(submitted.request)) live_.erase(RequestId{submitted.request.value + i});
}

void ShellModel::step_done(const StepResult& result) {
  const auto it = pending_steps_.find(result.step.value);
  const bool blind = plant_ == Plant::stale_result_taken;
  if (!blind && (it == pending_steps_.end() || result.epoch.value != epoch_)) return;  // an epoch that is over
  refusals_ = 0;
  if (strikes_ > 0 && ++steps_since_strike_ >= steps_to_forget_strikes) strikes_ = 0;
  if (it != pending_steps_.end()) pending_steps_.erase(it);
  // The next one waited at the ranks for this one: only now is it its turn.
  if (!pending_steps_.empty()) pending_steps_.begin()->second = stage_.time.now();
  for (Rank& rank : ranks_) {
    rank.progress = stage_.time.now();
    rank.idle_since.reset();
  }
  feed(StepDone{StepResult(result)});
  tell_resumed();
}

void ShellModel::step_failed(std::uint64_t epoch, bool refused) {
  if (epoch != epoch_ || !epoch_usable_) return;
  if (refused && ++refusals_ >= 2) end_running();
  fail(epoch_, {});
}

void ShellModel::end_running() {
  std::vector<RequestId> running;
  for (const auto& [request, held] : live_)
    if (held) running.push_back(request);
  for (const RequestId request : running) cancel(request, Error{ErrorCode::internal, "a rank refused the plan", {}});
  refusals_ = 0;
}

// The first rank of a newer membership: what there was is over, and the grid is the one that it names.
bool ShellModel::begin_epoch(std::uint64_t epoch, const Grid& grid) {
  if (grid != grid_ || shape_.layout.page_count == 0) shape_ = links_.kv_of(grid);
  lose_epoch(epoch_);
  epoch_ = epoch;
  grid_ = grid;
  ranks_.assign(grid_.world, Rank{});
  return true;
}

void ShellModel::rank_ready(std::uint64_t epoch, std::uint32_t rank, const Grid& grid) {
  if (epoch < epoch_ || epoch <= lost_ || rank >= grid.world || (epoch == epoch_ && grid != grid_) || (epoch > epoch_ && !begin_epoch(epoch, grid)))
    return;
  ranks_[rank] = Rank{true, epoch, stage_.time.now(), std::nullopt};
  const bool complete = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.here && r.epoch == epoch_; });
  if (!complete || epoch_usable_) return;
  epoch_usable_ = true;
  resume_.ready(clock());
  feed(judge_.ready(EpochId{epoch_}, shape_));
  links_.on_ready(epoch_);
  tell_resumed();
}

void ShellModel::tell_resumed() {
  if (resume_.take()) links_.on_resumed(epoch_);
}

// A rank that waits for its peers in a collective is busy, so all of them are idle only when the step never came to any of them, or its result got
// lost.
void ShellModel::rank_status(std::uint64_t epoch, std::uint32_t number, bool busy) {
  if (number >= ranks_.size() || epoch != epoch_) return;
  Rank& rank = ranks_[number];
  const Timeline::Time now = stage_.time.now();
  if (!busy) rank.progress = now;
  if (busy || pending_steps_.empty() || !epoch_usable_) return rank.idle_since.reset();
  if (!rank.idle_since) rank.idle_since = now;
  const auto idle = [&](const Rank& r) { return r.idle_since && now - *r.idle_since >= lost_message_wait_us; };
  if (std::all_of(ranks_.begin(), ranks_.end(), idle)) fail(epoch_, {});
}

void ShellModel::lose_epoch(std::uint64_t epoch) {
  if (epoch != epoch_ || !epoch_usable_) return;
  epoch_usable_ = false;
  pending_steps_.clear();
  resume_.interrupted();
  for (const auto& [request, held] : live_)
    if (held) resume_.interrupted(request);
  feed(RanksLost{EpochId{epoch}});
}

void ShellModel::membership_lost(std::uint64_t epoch) {
  // It may come early: ranks of that epoch, the dead one too, may still be about to say that they are ready.
  lost_ = std::max(lost_, epoch);
  if (epoch >= epoch_) lose_epoch(epoch_);
}

void ShellModel::membership_grows(std::uint64_t epoch) {
  if (epoch == epoch_) lose_epoch(epoch);
}

void ShellModel::rank_down(std::uint64_t epoch, std::uint32_t rank) {
  if (rank >= ranks_.size() || !ranks_[rank].here || ranks_[rank].epoch != epoch) return;
  ranks_[rank].here = false;
  if (epoch == epoch_) fail(epoch_, {});
}

void ShellModel::fail(std::uint64_t epoch, const std::vector<std::uint32_t>& silent) {
  lose_epoch(epoch);
  links_.report_failure(epoch, silent);
}

void ShellModel::beat() {
  feed(Ticked{now_ms()});
  if (epoch_usable_) check_progress();
}

// A step that takes too long is somebody's fault: whoever has not answered a probe meanwhile.
void ShellModel::check_progress() {
  const Timeline::Time now = stage_.time.now();
  const bool late = !pending_steps_.empty() && now - pending_steps_.begin()->second > patience();
  const Timeline::Time silence_max = late ? patience() / 2 : patience();
  std::vector<std::uint32_t> silent;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (now - ranks_[r].progress > silence_max) silent.push_back(r);
  if (!late && silent.empty()) return;
  strikes_ = std::min(strikes_ + 1, strikes_max);
  steps_since_strike_ = 0;
  fail(epoch_, silent);
}

void ShellModel::probe() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r].here) links_.probe(r);
}

}  // namespace althing::tests
