// The rank actor: see the header. Rank 0 reports the drawn tokens; all ranks draw the same ones, so one report is enough.
#include "actors/rank_actor.hpp"

#include <caf/send.hpp>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace {

using Self = caf::stateful_actor<RankState>*;

// On any thread, and maybe when the actor is gone already. The scheduler fences by epoch once more, so a change of epoch may happen meanwhile.
void report(RankPulse& pulse, RankEpoch& epoch, StepId step, Result<StepResult>&& result) {
  --pulse.steps_in_flight;
  if (result) {
    if (epoch.rank.value == 0 && !epoch.over) caf::anon_send(epoch.scheduler, std::move(*result));
    return;
  }
  // Steps behind a failed one fail because of it; one report is enough.
  if (epoch.over.exchange(true)) return;
  const ErrorCode code = result.error().code;
  const bool lost = code != ErrorCode::unavailable && code != ErrorCode::invalid_argument;
  log(lost ? LogLevel::error : LogLevel::warning, lost ? "device_lost" : "step_failed",
      {{"step", step.value}, {"epoch", epoch.epoch.value}, {"reason", result.error().message}});
  if (lost && epoch.on_lost) return epoch.on_lost();
  caf::anon_send(epoch.scheduler,
                 StepFailed{epoch.rank.value, epoch.epoch.value, step.value, code == ErrorCode::invalid_argument, result.error().message});
}

void run(RankState& state, const StepPlan& plan) {
  if (!state.epoch || state.epoch->over || plan.epoch != state.epoch->epoch) {
    log(LogLevel::info, "plan_fenced", {{"step", plan.step.value}, {"epoch", plan.epoch.value}});
    return;
  }
  ++state.pulse->steps_in_flight;
  // Nothing here keeps the actor or its executor: the executor may end only after its last step.
  state.executor->submit(plan, state.communicator, [pulse = state.pulse, epoch = state.epoch, step = plan.step](Result<StepResult> result) {
    report(*pulse, *epoch, step, std::move(result));
  });
}

void join(Self self, JoinEpoch& join) {
  RankState& state = self->state;
  if (state.epoch) state.epoch->over = true;
  state.communicator = std::move(join.communicator);
  state.epoch = std::make_shared<RankEpoch>();
  state.epoch->rank = state.communicator->rank();
  state.epoch->epoch = state.communicator->epoch();
  state.epoch->scheduler = std::move(join.scheduler);
  state.epoch->on_lost = state.on_lost;
  state.pulse->rank = state.epoch->rank.value;
  state.pulse->epoch = state.epoch->epoch.value;
  self->send(state.epoch->scheduler,
             RankReady{state.epoch->rank.value, state.epoch->epoch.value, caf::actor_cast<caf::actor>(self), state.pulse_actor});
}

}  // namespace

caf::behavior rank_actor(Self self, std::shared_ptr<gpu::Executor> executor, std::function<void()> on_lost) {
  guard(self);
  auto pulse = std::make_shared<RankPulse>(executor);
  gpu::Observer observer;
  observer.progress = [pulse] { pulse->progress.fetch_add(1, std::memory_order_relaxed); };
  executor->observe(std::move(observer));
  self->state.executor = std::move(executor);
  self->state.on_lost = std::move(on_lost);
  self->state.pulse = pulse;
  self->state.pulse_actor = self->spawn<caf::linked>(pulse_actor, std::move(pulse));
  return {
      [=](JoinEpoch& epoch) { join(self, epoch); },
      [=](const StepPlan& plan) { run(self->state, plan); },
  };
}

caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse) {
  guard(self);
  return {
      [=](const Probe& probe) {
        // Read before the counts: a count may be newer than the progress beside it, never older.
        RankStatus status{pulse->rank, pulse->epoch, probe.sent_ms, pulse->steps_in_flight > 0, pulse->progress, {}};
        if (const auto executor = pulse->executor.lock()) status.expert_tokens = executor->expert_counts().tokens;
        return status;
      },
  };
}

}  // namespace althing::actors
