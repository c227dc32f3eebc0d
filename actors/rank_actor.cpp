// The rank actor: see the header. Rank 0 reports the drawn tokens; all ranks draw the same ones, so one report is enough.
#include "actors/rank_actor.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace {

using Self = caf::stateful_actor<RankState>*;

// A step on its way.
struct Submission {
  StepId step;
  std::uint32_t tokens = 0;
  std::uint64_t began_ns = 0;
};

// On any thread, and maybe when the actor is gone already. The scheduler fences by epoch once more, so a change of epoch may happen meanwhile.
void report(RankPulse& pulse, RankEpoch& epoch, const Submission& step, Result<StepResult>&& result) {
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t began = std::max(step.began_ns, pulse.last_done_ns.exchange(now));
  if (result) pulse.stamps->step_done(now - began, step.tokens);
  pulse.stamps->in_flight.fetch_sub(1, std::memory_order_release);
  if (result) {
    if (epoch.rank.value != 0 || epoch.over) return;
    if (epoch.hooks.faults && !epoch.hooks.faults->lets_out(*result)) return;
    caf::anon_send(epoch.scheduler, std::move(*result));
    return;
  }
  // Steps behind a failed one fail because of it; one report is enough.
  if (epoch.over.exchange(true)) return;
  const ErrorCode code = result.error().code;
  const bool lost = code != ErrorCode::unavailable && code != ErrorCode::invalid_argument;
  log(lost ? LogLevel::error : LogLevel::warning, lost ? "device_lost" : "step_failed",
      {{"step", step.step.value},
       {"epoch", epoch.epoch.value},
       {"reason", result.error().message},
       {"next", "nothing to do: " + std::string(lost ? "this rank starts again and joins a new epoch" : "a new epoch follows this one") +
                    ", and streams go on by themselves"}});
  if (lost && epoch.hooks.on_lost) return epoch.hooks.on_lost();
  caf::anon_send(epoch.scheduler,
                 StepFailed{epoch.rank.value, epoch.epoch.value, step.step.value, code == ErrorCode::invalid_argument, result.error().message});
}

void run(RankState& state, const StepPlan& plan) {
  if (!state.executor || !state.epoch || state.epoch->over || plan.epoch != state.epoch->epoch) {
    log(LogLevel::info, "plan_fenced", {{"step", plan.step.value}, {"epoch", plan.epoch.value}});
    return;
  }
  if (state.hooks.faults && !state.hooks.faults->lets_in(plan, *state.executor)) return;
  Submission submission{plan.step, 0, monotonic_ns()};
  for (const RowWork& work : plan.work) submission.tokens += work.count;
  RankStamps& stamps = *state.pulse->stamps;
  stamps.tokens.store(submission.tokens, std::memory_order_relaxed);
  stamps.in_flight.fetch_add(1, std::memory_order_release);
  // Nothing here keeps the actor or its executor: the executor may end only after its last step.
  state.executor->submit(plan, state.communicator, [pulse = state.pulse, epoch = state.epoch, submission](Result<StepResult> result) {
    report(*pulse, *epoch, submission, std::move(result));
  });
}

void take_executor(RankState& state, std::shared_ptr<gpu::Executor> executor) {
  gpu::Observer observer;
  observer.progress = [stamps = state.pulse->stamps] { stamps->progress.fetch_add(1, std::memory_order_relaxed); };
  executor->observe(std::move(observer));
  state.pulse->watch(executor);
  state.executor = std::move(executor);
}

// Its steps in flight end first, without a word to anybody: their epoch is over.
void drop_executor(RankState& state) {
  if (state.epoch) state.epoch->over = true;
  state.executor.reset();
}

void join(Self self, JoinEpoch& join) {
  RankState& state = self->state;
  if (join.executor) {
    drop_executor(state);
    take_executor(state, std::move(join.executor));
  }
  if (state.epoch) state.epoch->over = true;
  state.communicator = std::make_shared<StampedCommunicator>(std::move(join.communicator), state.pulse->stamps);
  if (state.hooks.faults) state.communicator = state.hooks.faults->around(std::move(state.communicator));
  state.epoch = std::make_shared<RankEpoch>();
  state.epoch->rank = state.communicator->rank();
  state.epoch->epoch = state.communicator->epoch();
  state.epoch->scheduler = std::move(join.scheduler);
  state.epoch->hooks = state.hooks;
  state.pulse->rank = state.epoch->rank.value;
  state.pulse->stamps->epoch.store(state.epoch->epoch.value, std::memory_order_release);
  self->send(state.epoch->scheduler, RankReady{state.epoch->rank.value, state.epoch->epoch.value, caf::actor_cast<caf::actor>(self),
                                               state.pulse_actor, join.grid, state.executor->mirror_seed(), state.executor->take_mirror()});
}

}  // namespace

caf::behavior rank_actor(Self self, std::shared_ptr<gpu::Executor> executor, RankHooks hooks) {
  guard(self);
  self->state.pulse = std::make_shared<RankPulse>(hooks.stamps);
  self->state.hooks = std::move(hooks);
  if (executor) take_executor(self->state, std::move(executor));
  self->state.pulse_actor = self->spawn<caf::linked>(pulse_actor, self->state.pulse);
  return {
      [=](DropExecutor) {
        drop_executor(self->state);
        return caf::unit;
      },
      [=](JoinEpoch& epoch) { join(self, epoch); },
      [=](const StepPlan& plan) { run(self->state, plan); },
  };
}

caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse) {
  guard(self);
  return {
      [=](const Probe& probe) {
        // Read before the counts: a count may be newer than the progress beside it, never older.
        const RankStamps& stamps = *pulse->stamps;
        RankStatus status{pulse->rank, stamps.epoch, probe.sent_ms, stamps.in_flight > 0, stamps.progress, {}, {}};
        if (const auto executor = pulse->watched()) {
          if (!executor->counts_steps()) status.expert_tokens = executor->expert_counts().tokens;
          const gpu::MirrorCounts pages = executor->mirror_counts();
          status.mirror_pages = {pages.copied, pages.skipped, pages.restored, pages.missing, pages.corrupt};
        }
        return status;
      },
  };
}

}  // namespace althing::actors
