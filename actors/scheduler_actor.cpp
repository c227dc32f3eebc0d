// The scheduler shell: see the header. The core decides, this file only carries out.
#include "actors/scheduler_actor.hpp"

#include <algorithm>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"
#include "scheduler/journal.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::milliseconds beat_interval{20};
constexpr std::chrono::milliseconds probe_interval{200};
constexpr std::uint32_t steps_to_forget_strikes = 256;
constexpr std::uint32_t strikes_max = 6;
constexpr double absent_age_seconds = 1000.0;

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

Status SchedulerShell::start(caf::event_based_actor* self, SchedulerOptions options) {
  auto core = scheduler::Core::create(options.core);
  if (!core) return core.error();
  self_ = self;
  core_ = std::move(*core);
  started_ = Clock::now();
  ranks_.resize(options.ranks);
  options_ = std::move(options);
  return Ok{};
}

std::uint64_t SchedulerShell::now_ms() const {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count());
}

void SchedulerShell::feed(const Event& event) {
  if (options_.journal) options_.journal->append(scheduler::to_line(event));
  const auto began = Clock::now();
  const std::span<const Effect> effects = core_->on(event);
  options_.metrics->scheduler_step(seconds_since(began));
  // Copied first: carrying out an effect may feed the core again.
  std::vector<Effect> copy(effects.begin(), effects.end());
  for (const Effect& effect : copy) perform(effect);
}

void SchedulerShell::perform(const Effect& effect) {
  if (const auto* run = std::get_if<RunStep>(&effect)) return run_step(run->plan);
  if (const auto* finished = std::get_if<Finished>(&effect)) return finish(*finished);
  if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) {
    options_.metrics->generated(static_cast<std::uint32_t>(drawn->tokens.size()));
    if (const auto it = live_.find(drawn->request); it != live_.end()) self_->send(it->second.frontend, *drawn);
    return;
  }
  if (const auto* accepted = std::get_if<Accepted>(&effect)) {
    const auto it = live_.find(accepted->request);
    if (it == live_.end()) return;
    options_.metrics->request_accepted(it->second.prompt_tokens);
    self_->send(it->second.frontend, *accepted);
    return;
  }
  const auto& rejected = std::get<Rejected>(effect);
  options_.metrics->request_rejected(rejected.error.code);
  const auto it = live_.find(rejected.request);
  if (it == live_.end()) return;
  self_->send(it->second.frontend, rejected);
  live_.erase(it);
}

void SchedulerShell::run_step(const StepPlan& plan) {
  PendingStep pending{Clock::now(), 0};
  for (const RowWork& work : plan.work) pending.tokens += work.count;
  for (const RowSetup& setup : plan.set) {
    const auto it = live_.find(setup.request);
    if (it == live_.end() || !it->second.waiting) continue;
    it->second.waiting = false;
    options_.metrics->queue_wait(seconds_since(it->second.accepted));
  }
  pending_steps_[plan.step.value] = pending;
  for (const Rank& rank : ranks_) self_->send(rank.actor, plan);
}

void SchedulerShell::finish(const Finished& finished) {
  const auto it = live_.find(finished.request);
  if (it == live_.end()) return;
  const double seconds = seconds_since(it->second.accepted);
  options_.metrics->request_finished(finished.reason, finished.error.code, seconds);
  log(LogLevel::info, "request_finished",
      {{"request", finished.request.value},
       {"reason", name_of(finished.reason)},
       {"prompt_tokens", finished.usage.prompt_tokens},
       {"completion_tokens", finished.usage.completion_tokens},
       {"preemptions", finished.usage.preemptions},
       {"seconds", seconds},
       {"error", finished.error.message}});
  self_->send(it->second.frontend, finished);
  live_.erase(it);
}

void SchedulerShell::submit(SubmitRequest& request) {
  const RequestId id = request.submitted.request;
  live_[id] = Live{request.frontend, Clock::now(), static_cast<std::uint32_t>(request.submitted.prompt.size()), true};
  self_->monitor(request.frontend);
  // Time passes for the core only by Ticked, and a deadline is on its clock.
  feed(Ticked{now_ms()});
  if (request.timeout_ms > 0) request.submitted.deadline_ms = now_ms() + request.timeout_ms;
  feed(std::move(request.submitted));
}

void SchedulerShell::cancel(CancelRequest& request) { feed(Cancelled{request.request, std::move(request.error)}); }

void SchedulerShell::step_done(StepResult& result) {
  const auto it = pending_steps_.find(result.step.value);
  if (it == pending_steps_.end() || result.epoch.value != epoch_) return;  // an epoch that is over
  options_.metrics->step(seconds_since(it->second.began), it->second.tokens);
  refusals_ = 0;
  if (strikes_ > 0 && ++steps_since_strike_ >= steps_to_forget_strikes) strikes_ = 0;
  pending_steps_.erase(it);
  // The next one waited at the ranks for this one: only now is it its turn.
  if (!pending_steps_.empty()) pending_steps_.begin()->second.began = Clock::now();
  // A step needs every rank, so its end is progress of all of them.
  const auto now = Clock::now();
  for (Rank& rank : ranks_) rank.progress = now;
  feed(StepDone{std::move(result)});
}

void SchedulerShell::step_failed(const StepFailed& failed) {
  if (failed.rank < ranks_.size()) ranks_[failed.rank].progress = Clock::now();
  if (failed.epoch != epoch_ || !epoch_usable_) return;
  // The same plan would be refused for ever: after the second time the requests in it end, and the others go on.
  if (failed.refused && ++refusals_ >= 2)
    end_running(Error{ErrorCode::internal, "a rank refused the plan that this request was part of: " + failed.reason + "; please report this", ""});
  fail(epoch_, {}, "rank " + std::to_string(failed.rank) + " could not run step " + std::to_string(failed.step) + ": " + failed.reason);
}

void SchedulerShell::end_running(const Error& error) {
  std::vector<RequestId> running;
  for (const auto& [id, live] : live_)
    if (!live.waiting) running.push_back(id);
  for (const RequestId id : running) feed(Cancelled{id, error});
  refusals_ = 0;
}

void SchedulerShell::rank_ready(const RankReady& ready) {
  if (ready.rank >= ranks_.size() || ready.epoch < epoch_) {
    log(LogLevel::warning, "rank_refused", {{"rank", ready.rank}, {"epoch", ready.epoch}, {"current_epoch", epoch_}});
    return;
  }
  if (ready.epoch > epoch_) {
    lose_epoch(epoch_);
    epoch_ = ready.epoch;
    options_.metrics->epoch(epoch_);
  }
  ranks_[ready.rank] = Rank{ready.actor, ready.pulse, ready.epoch, 0, Clock::now()};
  self_->monitor(ready.actor);
  options_.metrics->rank_up(ready.rank, true);
  log(LogLevel::info, "rank_ready", {{"rank", ready.rank}, {"epoch", ready.epoch}});
  const bool complete = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.actor && rank.epoch == epoch_; });
  if (!complete || epoch_usable_) return;
  epoch_usable_ = true;
  feed(RanksReady{EpochId{epoch_}});
  report();
  if (options_.on_ready) options_.on_ready(epoch_);
}

void SchedulerShell::rank_status(const RankStatus& status) {
  if (status.rank >= ranks_.size()) return;
  Rank& rank = ranks_[status.rank];
  if (!status.busy || status.progress != rank.counter) rank.progress = Clock::now();
  rank.counter = status.progress;
  options_.metrics->expert_tokens(status.rank, status.expert_tokens);
}

void SchedulerShell::lose_epoch(std::uint64_t epoch) {
  if (epoch != epoch_ || !epoch_usable_) return;
  epoch_usable_ = false;
  pending_steps_.clear();
  feed(RanksLost{EpochId{epoch}});
  report();
}

void SchedulerShell::membership_lost(const MembershipLost& lost) {
  log(LogLevel::warning, "membership_lost", {{"epoch", lost.epoch}, {"rank", lost.rank}, {"cause", lost.cause}, {"live_requests", live_.size()}});
  if (lost.rank < ranks_.size()) {
    options_.metrics->rank_up(lost.rank, false);
    options_.metrics->rank_failed(lost.rank, lost.cause);
  }
  lose_epoch(lost.epoch);
}

void SchedulerShell::actor_down(const caf::actor_addr& source) {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].actor || ranks_[r].actor != source) continue;
    const bool current = ranks_[r].epoch == epoch_;
    ranks_[r].actor = nullptr;
    options_.metrics->rank_up(r, false);
    // Also while the membership is still being put together: nobody else would notice, and it would never be complete.
    if (current) fail(epoch_, {}, "the connection to rank " + std::to_string(r) + " ended");
    return;
  }
  // A frontend that ended while its request lives: the request has no reader any more.
  std::vector<RequestId> orphans;
  for (const auto& [id, live] : live_)
    if (live.frontend == source) orphans.push_back(id);
  for (const RequestId id : orphans) feed(Cancelled{id, Error{ErrorCode::cancelled, "the stream's reader ended", ""}});
}

void SchedulerShell::fail(std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string& cause) {
  log(LogLevel::error, "epoch_failed", {{"epoch", epoch}, {"cause", cause}});
  lose_epoch(epoch);
  if (options_.report_failure) {
    options_.report_failure(epoch, ranks, cause);
    return;
  }
  std::vector<RequestId> all;
  for (const auto& entry : live_) all.push_back(entry.first);
  for (const RequestId id : all) feed(Cancelled{id, Error{ErrorCode::rank_lost, "the model's ranks failed: " + cause, ""}});
}

void SchedulerShell::drain() {
  log(LogLevel::info, "drain", {{"live_requests", live_.size()}});
  feed(DrainStarted{});
}

void SchedulerShell::beat() {
  feed(Ticked{now_ms()});
  if (options_.journal) options_.journal->flush();
  if (epoch_usable_) check_progress();
  if (core_->stats().draining && live_.empty() && !drained_told_ && options_.on_drained) {
    drained_told_ = true;
    options_.on_drained();
  }
  self_->delayed_send(self_, beat_interval, tick_beat_v);
}

// A step that takes too long is somebody's fault: whoever has not answered a probe meanwhile. A rank may also freeze while there is nothing to do.
void SchedulerShell::check_progress() {
  const auto now = Clock::now();
  const bool late = !pending_steps_.empty() && now - pending_steps_.begin()->second.began > patience();
  const auto silence_max = late ? patience() / 2 : patience();
  std::vector<std::uint32_t> silent;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (now - ranks_[r].progress > silence_max) silent.push_back(r);
  if (!late && silent.empty()) return;
  strikes_ = std::min(strikes_ + 1, strikes_max);
  steps_since_strike_ = 0;
  fail(epoch_, silent, late ? "a step did not end within its deadline" : "a rank does not answer");
}

void SchedulerShell::report() {
  const scheduler::CoreStats stats = core_->stats();
  options_.metrics->scheduler(stats.running, stats.waiting, stats.pages_used, stats.pages_total, stats.preemptions);
  StatusReport status{epoch_usable_, stats.draining, epoch_, stats.running, stats.waiting, {}};
  const double unix_seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    const double age = ranks_[r].actor ? seconds_since(ranks_[r].progress) : absent_age_seconds;
    status.rank_age_ms.push_back(static_cast<std::uint64_t>(age * 1000.0));
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

caf::behavior scheduler_actor(caf::stateful_actor<SchedulerShell>* self, SchedulerOptions options) {
  guard(self);
  if (auto status = self->state.start(self, std::move(options)); !status) {
    log(LogLevel::error, "scheduler_refused", {{"reason", status.error().message}});
    self->quit(caf::exit_reason::user_shutdown);
    return {};
  }
  SchedulerShell& shell = self->state;
  self->set_down_handler([self](caf::down_msg& down) {
    log(LogLevel::debug, "actor_down", {{"reason", self->system().render(down.reason)}});
    self->state.actor_down(down.source);
  });
  self->delayed_send(self, beat_interval, tick_beat_v);
  self->delayed_send(self, probe_interval, probe_beat_v);
  return {
      [&shell](StepResult& result) { shell.step_done(result); },
      [&shell](SubmitRequest& request) { shell.submit(request); },
      [&shell](CancelRequest& request) { shell.cancel(request); },
      [&shell](const RankReady& ready) { shell.rank_ready(ready); },
      [&shell](const RankStatus& status) { shell.rank_status(status); },
      [&shell](const StepFailed& failed) { shell.step_failed(failed); },
      [&shell](const MembershipLost& lost) { shell.membership_lost(lost); },
      [&shell](drain_atom) { shell.drain(); },
      [&shell](tick_beat) { shell.beat(); },
      [&shell](probe_beat) { shell.probe(); },
  };
}

}  // namespace althing::actors
