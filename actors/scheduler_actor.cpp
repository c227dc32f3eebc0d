// The scheduler shell: see the header. The core decides, this file only carries out.
#include "actors/scheduler_actor.hpp"

#include <algorithm>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"
#include "scheduler/journal.hpp"
#include "scheduler/journal_effects.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::milliseconds beat_interval{20};
constexpr std::chrono::milliseconds probe_interval{200};
constexpr std::uint32_t steps_to_forget_strikes = 256;
constexpr std::uint32_t strikes_max = 6;
// A step is on its way, and the ranks have said for this long that they have nothing to do: its plan or its result is lost.
constexpr std::chrono::milliseconds lost_message_wait{600};

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
  usage_ = UsageBook(options.experts_of_a_token);
  options_ = std::move(options);
  return Ok{};
}

std::uint64_t SchedulerShell::now_ms() const {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count());
}

void SchedulerShell::feed(const Event& event) {
  std::vector<Effect> effects = decide(event);
  for (Effect& effect : effects) perform(effect);
  tell_usage();
}

// Copied: carrying out an effect may feed the core again.
std::vector<Effect> SchedulerShell::decide(const Event& event) {
  if (options_.journal) options_.journal->append(scheduler::to_line(event));
  const auto began = Clock::now();
  const std::span<const Effect> effects = core_->on(event);
  options_.metrics->scheduler_step(seconds_since(began));
  if (options_.journal && !effects.empty()) options_.journal->append(scheduler::to_effects_line(scheduler::digest_of(effects)));
  // Most requests and beats change nobody's pages, and looking at all of them takes as long as there are many.
  const bool small = std::holds_alternative<Submitted>(event) || std::holds_alternative<Ticked>(event);
  const std::uint64_t changes = core_->page_changes();
  if (std::exchange(page_changes_, changes) != changes || !small) usage_.hold(core_->held_pages(), shape_.layout.page_bytes * grid_.tp, began);
  return {effects.begin(), effects.end()};
}

void SchedulerShell::tell_usage() {
  for (UsageRecord& record : usage_.take_records(Clock::now()))
    if (options_.accountant) self_->send(options_.accountant, std::move(record));
}

void SchedulerShell::perform(Effect& effect) {
  if (auto* run = std::get_if<RunStep>(&effect)) return run_step(run->plan);
  if (const auto* finished = std::get_if<Finished>(&effect)) return finish(*finished);
  if (auto* drawn = std::get_if<TokensDrawn>(&effect)) {
    options_.metrics->generated(static_cast<std::uint32_t>(drawn->tokens.size()));
    resume_.moved(drawn->request, Clock::now());
    const auto it = live_.find(drawn->request);
    if (it == live_.end()) return;
    if (it->second.constrained) it->second.masks.erase(it->second.masks.begin(), it->second.masks.upper_bound(drawn->first));
    if (std::exchange(it->second.tp, grid_.tp) != grid_.tp) self_->send(it->second.frontend, DrawnUnder{grid_.tp});
    self_->send(it->second.frontend, std::move(*drawn));
    return;
  }
  if (const auto* accepted = std::get_if<Accepted>(&effect)) {
    const auto it = live_.find(accepted->request);
    if (it == live_.end()) return;
    if (!std::exchange(it->second.request->accepted, true)) options_.metrics->request_accepted(it->second.prompt_tokens);
    self_->send(it->second.frontend, *accepted);
    return;
  }
  if (const auto* preempted = std::get_if<Preempted>(&effect)) {
    if (preempted->cause == PreemptionCause::share) options_.metrics->preempted_for_share();
    return log(
        LogLevel::debug, "request_preempted",
        {{"request", preempted->request.value}, {"by", preempted->by.value}, {"cause", name_of(preempted->cause)}, {"tokens", preempted->tokens}});
  }
  const auto& rejected = std::get<Rejected>(effect);
  resume_.moved(rejected.request, Clock::now());
  const auto it = live_.find(rejected.request);
  if (it == live_.end()) return;
  for (std::uint32_t i = 0; i < it->second.request->submitted; ++i) usage_.ledger().refused(RequestId{rejected.request.value + i});
  self_->send(it->second.frontend, rejected);
  const std::shared_ptr<Request> request = it->second.request;
  // Where a dead core left several choices, others of them may be accepted: then the request is one that fails.
  request->note_end(FinishReason::error, rejected.error.code);
  request->open -= request->submitted;
  if (request->open == 0 && request->accepted)
    options_.metrics->request_finished(request->reason, request->code, seconds_since(it->second.accepted));
  else if (request->open == 0)
    options_.metrics->request_rejected(rejected.error.code);
  for (std::uint32_t i = 0; i < request->submitted; ++i) live_.erase(RequestId{rejected.request.value + i});
}

void SchedulerShell::run_step(StepPlan& plan) {
  if (options_.on_step) options_.on_step();
  PendingStep pending{Clock::now(), 0};
  for (const RowWork& work : plan.work) pending.tokens += work.count;
  for (const RowSetup& setup : plan.set) {
    const auto it = live_.find(setup.request);
    if (it == live_.end() || !it->second.waiting) continue;
    it->second.waiting = false;
    options_.metrics->queue_wait(seconds_since(it->second.accepted));
  }
  note_traced(plan, pending);
  put_masks(plan);
  pending_steps_[plan.step.value] = std::move(pending);
  usage_.ledger().planned(plan);
  for (const Rank& rank : ranks_)
    if (&rank != &ranks_.back()) self_->send(rank.actor, plan);
  if (!ranks_.empty()) self_->send(ranks_.back().actor, std::move(plan));
}

void SchedulerShell::finish(const Finished& finished) {
  resume_.moved(finished.request, Clock::now());
  usage_.ledger().finished(finished);
  const auto it = live_.find(finished.request);
  if (it == live_.end()) return;
  if (!stopping_ && trace_is_due(finished.request)) return held_.push_back(finished);
  const double seconds = seconds_since(it->second.accepted);
  Request& request = *it->second.request;
  request.note_end(finished.reason, finished.error.code);
  if (--request.open == 0) options_.metrics->request_finished(request.reason, request.code, seconds);
  log(LogLevel::info, "request_finished",
      {{"request", finished.request.value},
       {"choice", it->second.choice},
       {"reason", name_of(finished.reason)},
       {"prompt_tokens", finished.usage.prompt_tokens},
       {"completion_tokens", finished.usage.completion_tokens},
       {"preemptions", finished.usage.preemptions},
       {"cached_tokens", finished.usage.cached_tokens},
       {"miss", name_of(finished.usage.miss)},
       {"seconds", seconds},
       {"error", finished.error.message}});
  self_->send(it->second.frontend, finished);
  live_.erase(it);
}

void SchedulerShell::submit(SubmitRequest& request) {
  const std::uint32_t choices = request.submitted.choices;
  usage_.open(request, request.submitted.request, false, Clock::now());
  submit(request, std::make_shared<Request>(Request{choices, choices}));
}

void SchedulerShell::resubmit(ResubmitRequest& request) {
  const auto open = static_cast<std::uint32_t>(request.choices.size());
  const auto together = std::make_shared<Request>(Request{1, open, request.reason, request.code});
  for (const SubmitRequest& choice : request.choices) usage_.open(choice, request.choices.front().submitted.request, true, Clock::now());
  for (SubmitRequest& choice : request.choices) submit(choice, together);
}

void SchedulerShell::submit(SubmitRequest& request, const std::shared_ptr<Request>& together) {
  const Submitted& submitted = request.submitted;
  const auto prompt_tokens = static_cast<std::uint32_t>(submitted.prompt.size());
  // Another core has computed all but the last token.
  const std::uint32_t known = submitted.drawn.empty() ? 0 : prompt_tokens + static_cast<std::uint32_t>(submitted.drawn.size());
  for (std::uint32_t i = 0; i < submitted.choices; ++i)
    live_[RequestId{submitted.request.value + i}] =
        Live{together, submitted.sampling.choice + i, request.frontend, Clock::now(), prompt_tokens, true, 0, known > 0 ? known - 1 : 0};
  if (submitted.constrained) expect_masks(request);
  self_->monitor(request.frontend);
  // Time passes for the core only by Ticked, and a deadline is on its clock.
  feed(Ticked{now_ms()});
  // Another core's stream was interrupted by its death.
  if (!request.submitted.drawn.empty()) {
    resume_.interrupted();
    resume_.interrupted(submitted.request);
  }
  request.submitted.salt = options_.salts.of(request.label.tenant);
  request.submitted.tenant = options_.salts.tenant(request.label.tenant);
  if (request.timeout_ms > 0) request.submitted.deadline_ms = now_ms() + request.timeout_ms;
  feed(std::move(request.submitted));
}

void SchedulerShell::cancel(CancelRequest& request) { feed(Cancelled{request.request, std::move(request.error)}); }

void SchedulerShell::stop(const StopRequest& stop) { feed(Stopped{stop.request, stop.completion_tokens}); }

void SchedulerShell::step_done(StepResult& result) {
  const auto it = pending_steps_.find(result.step.value);
  if (it == pending_steps_.end() || result.epoch.value != epoch_) return;  // an epoch that is over
  const PendingStep step = it->second;
  refusals_ = 0;
  if (strikes_ > 0 && ++steps_since_strike_ >= steps_to_forget_strikes) strikes_ = 0;
  pending_steps_.erase(it);
  // The next one waited at the ranks for this one: only now is it its turn.
  if (!pending_steps_.empty()) pending_steps_.begin()->second.began = Clock::now();
  // A step needs every rank, so its end is progress of all of them.
  const auto now = Clock::now();
  for (Rank& rank : ranks_) rank.progress = now;
  for (Rank& rank : ranks_) rank.idle_since.reset();
  commit(result, step);
  tell_resumed();
}

// Counted is what the core has accepted: it takes no step whose predecessor's result was lost, and what it does not take is computed again.
void SchedulerShell::commit(StepResult& result, const PendingStep& step) {
  const std::uint64_t before = core_->stats().steps_done;
  const Clock::duration took = Clock::now() - step.began;
  // The core plans; it neither needs these nor journals them.
  std::string counts = std::exchange(result.counts, {}), routing = std::exchange(result.routing, {});
  const std::string logprobs = std::exchange(result.logprobs, {});
  const StepId number = result.step;
  const EpochId epoch = result.epoch;
  std::vector<Effect> effects = decide(StepDone{std::move(result)});
  const bool accepted = core_->stats().steps_done != before;
  if (accepted) attach(logprobs, effects);
  // A trace is there before the tokens that it led to, and before the end.
  if (accepted && !routing.empty()) tell_routing(routing, number, epoch);
  for (Effect& effect : effects) perform(effect);
  finish_held();
  if (!accepted) return;
  options_.metrics->step(std::chrono::duration<double>(took).count(), step.tokens);
  usage_.step_done(number, took, grid_.world, *options_.metrics);
  tell_usage();
  if (options_.monitor && !counts.empty()) self_->send(options_.monitor, StepCounted{std::move(counts)});
}

void SchedulerShell::step_failed(const StepFailed& failed) {
  if (failed.epoch != epoch_ || !epoch_usable_) return;
  if (failed.rank < ranks_.size()) ranks_[failed.rank].progress = Clock::now();
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

// The first rank of a newer membership: what there was is over, and the grid is the one that it names.
bool SchedulerShell::begin_epoch(const RankReady& ready) {
  if (ready.grid != grid_ || shape_.layout.page_count == 0) {
    const scheduler::CoreConfig& core = options_.core;
    auto kv = options_.kv_of ? options_.kv_of(ready.grid) : Result<KvShape>(KvShape{ready.grid.dp, core.kv, core.mirror_slots, core.mirror_identity});
    if (!kv) {
      log(LogLevel::error, "grid_refused", {{"world", ready.grid.world}, {"tp", ready.grid.tp}, {"reason", kv.error().message}});
      return false;
    }
    shape_ = std::move(*kv);
  }
  lose_epoch(epoch_);
  epoch_ = ready.epoch;
  grid_ = ready.grid;
  for (std::uint32_t r = grid_.world; r < options_.ranks; ++r) options_.metrics->rank_up(r, false);
  ranks_.assign(grid_.world, Rank{});
  options_.metrics->epoch(epoch_);
  return true;
}

void SchedulerShell::rank_ready(const RankReady& ready) {
  if (ready.epoch < epoch_ || ready.epoch <= lost_ || ready.rank >= ready.grid.world || (ready.epoch == epoch_ && ready.grid != grid_) ||
      (ready.epoch > epoch_ && !begin_epoch(ready))) {
    log(LogLevel::warning, "rank_refused", {{"rank", ready.rank}, {"world", ready.grid.world}, {"epoch", ready.epoch}, {"current_epoch", epoch_}});
    return;
  }
  ranks_[ready.rank] = Rank{ready.actor, ready.pulse, ready.epoch, 0, Clock::now(), std::nullopt, {ready.mirror_seed, ready.mirrored}};
  self_->monitor(ready.actor);
  options_.metrics->rank_up(ready.rank, true);
  log(LogLevel::info, "rank_ready", {{"rank", ready.rank}, {"epoch", ready.epoch}});
  const bool complete = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.actor && rank.epoch == epoch_; });
  if (!complete || epoch_usable_) return;
  epoch_usable_ = true;
  resume_.ready(Clock::now());
  at_ready_ = core_->stats();
  std::vector<MirrorReport> reports;
  for (Rank& rank : ranks_) reports.push_back(std::exchange(rank.mirror, {}));
  if (options_.monitor) self_->send(options_.monitor, CountingUnder{epoch_, grid_});
  feed(RanksReady{EpochId{epoch_}, shape_, reports.front().seed, agree(reports, grid_.tp)});
  report();
  grown_ = false;  // told
  if (options_.on_ready) options_.on_ready(epoch_);
  tell_resumed();
}

void SchedulerShell::tell_resumed() {
  auto resumed = resume_.take();
  if (!resumed) return;
  const scheduler::CoreStats now = core_->stats();
  resumed->tokens_restored = now.tokens_restored - at_ready_.tokens_restored;
  resumed->tokens_recomputed = now.tokens_recomputed - at_ready_.tokens_recomputed;
  if (resumed->streams > 0)
    log(LogLevel::info, "streams_resumed",
        {{"epoch", epoch_},
         {"streams", resumed->streams},
         {"restored_tokens", resumed->tokens_restored},
         {"recomputed_tokens", resumed->tokens_recomputed},
         {"first_token_ms", resumed->first_token.count()},
         {"last_token_ms", resumed->last_token.count()}});
  if (options_.on_resumed) options_.on_resumed(epoch_, *resumed);
}

void SchedulerShell::rank_status(const RankStatus& status) {
  // In another epoch the number may have been another rank's.
  if (status.rank >= ranks_.size() || status.epoch != epoch_) return;
  Rank& rank = ranks_[status.rank];
  if (!status.busy || status.progress != rank.counter) rank.progress = Clock::now();
  rank.counter = status.progress;
  if (!status.expert_tokens.empty()) options_.metrics->expert_tokens(status.rank, status.expert_tokens);
  options_.metrics->mirror_pages(status.rank, status.mirror_pages);
  check_messages(status);
}

// A rank that waits for its peers in a collective is busy, so all of them are idle only when the step never came to any of them, or its result got
// lost.
void SchedulerShell::check_messages(const RankStatus& status) {
  Rank& rank = ranks_[status.rank];
  if (status.busy || pending_steps_.empty() || !epoch_usable_ || status.epoch != epoch_) return rank.idle_since.reset();
  const auto now = Clock::now();
  if (!rank.idle_since) rank.idle_since = now;
  const auto idle = [&](const Rank& r) { return r.idle_since && now - *r.idle_since >= lost_message_wait; };
  if (std::all_of(ranks_.begin(), ranks_.end(), idle))
    fail(epoch_, {}, "a message of step " + std::to_string(pending_steps_.begin()->first) + " is lost");
}

void SchedulerShell::lose_epoch(std::uint64_t epoch) {
  if (epoch != epoch_ || !epoch_usable_) return;
  epoch_usable_ = false;
  pending_steps_.clear();
  usage_.ledger().lost();
  resume_.interrupted();
  for (const auto& [id, live] : live_)
    if (!live.waiting) resume_.interrupted(id);
  feed(RanksLost{EpochId{epoch}});
  finish_held();
  report();
}

void SchedulerShell::membership_lost(const MembershipLost& lost) {
  log(LogLevel::warning, "membership_lost", {{"epoch", lost.epoch}, {"rank", lost.rank}, {"cause", lost.cause}, {"live_requests", live_.size()}});
  if (lost.rank < options_.ranks) options_.metrics->rank_failed(lost.rank, lost.cause);
  // The news may come late: a newer membership has another rank there.
  if (lost.epoch == epoch_ && lost.rank < ranks_.size()) options_.metrics->rank_up(lost.rank, false);
  grown_ = false;
  // It may also come early: ranks of that epoch, the dead one too, may still be about to say that they are ready.
  lost_ = std::max(lost_, lost.epoch);
  if (lost.epoch >= epoch_) lose_epoch(epoch_);
}

void SchedulerShell::membership_grows(const MembershipGrows& grows) {
  if (grows.epoch != epoch_) return;
  log(LogLevel::info, "membership_grows", {{"epoch", grows.epoch}, {"live_requests", live_.size()}});
  grown_ = true;
  lose_epoch(grows.epoch);
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
  grown_ = false;
  lose_epoch(epoch);
  if (options_.report_failure) {
    options_.report_failure(epoch, ranks, cause);
    return;
  }
  end_all(Error{ErrorCode::rank_lost, "the model's ranks failed: " + cause, ""});
}

void SchedulerShell::end_all(const Error& error) {
  std::vector<RequestId> all;
  for (const auto& entry : live_) all.push_back(entry.first);
  for (const RequestId id : all) feed(Cancelled{id, error});
}

void SchedulerShell::drain() {
  log(LogLevel::info, "drain", {{"live_requests", live_.size()}});
  feed(DrainStarted{});
  report();  // readiness must not wait for the next probe
}

void SchedulerShell::stop() {
  stopping_ = true;
  finish_held();
  feed(DrainStarted{});
  if (!live_.empty()) log(LogLevel::warning, "stopped_unfinished", {{"live_requests", live_.size()}});
  end_all(Error{ErrorCode::draining, "the server stopped before this request was finished; ask again when it is back", ""});
  // Steps in flight will not be heard of.
  usage_.ledger().lost();
  tell_usage();
}

void SchedulerShell::beat() {
  if (options_.on_beat) options_.on_beat();
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
      [&shell](ResubmitRequest& request) { shell.resubmit(request); },
      [&shell](CancelRequest& request) { shell.cancel(request); },
      [&shell](const StopRequest& stop) { shell.stop(stop); },
      [&shell](AllowDraws& allowed) { shell.allow(allowed); },
      [&shell](const RankReady& ready) { shell.rank_ready(ready); },
      [&shell](const RankStatus& status) { shell.rank_status(status); },
      [&shell](const StepFailed& failed) { shell.step_failed(failed); },
      [&shell](const MembershipLost& lost) { shell.membership_lost(lost); },
      [&shell](const MembershipGrows& grows) { shell.membership_grows(grows); },
      [&shell](drain_atom) { shell.drain(); },
      [&shell](stop_atom) { shell.stop(); },
      [&shell](tick_beat) { shell.beat(); },
      [&shell](probe_beat) { shell.probe(); },
  };
}

}  // namespace althing::actors
