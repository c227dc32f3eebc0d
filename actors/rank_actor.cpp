// The rank actor: see the header. Rank 0 reports the drawn tokens; all ranks draw the same ones, so one report is enough.
#include "actors/rank_actor.hpp"

#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace {

using Self = caf::stateful_actor<RankState>*;

void run(Self self, const StepPlan& plan) {
  RankState& state = self->state;
  if (!state.communicator || plan.epoch != state.communicator->epoch()) {
    log(LogLevel::info, "plan_fenced", {{"step", plan.step.value}, {"epoch", plan.epoch.value}});
    return;
  }
  Result<StepResult> result = state.executor->run(plan, *state.communicator);
  const RankId rank = state.communicator->rank();
  if (result) {
    if (rank.value == 0) self->send(state.scheduler, std::move(*result));
    return;
  }
  log(LogLevel::warning, "step_failed", {{"step", plan.step.value}, {"epoch", plan.epoch.value}, {"reason", result.error().message}});
  self->send(state.scheduler, StepFailed{rank.value, plan.epoch.value, plan.step.value, result.error().message});
}

}  // namespace

caf::behavior rank_actor(Self self, std::shared_ptr<gpu::Executor> executor) {
  guard(self);
  self->state.executor = std::move(executor);
  return {
      [=](JoinEpoch& join) {
        RankState& state = self->state;
        state.communicator = std::move(join.communicator);
        state.scheduler = std::move(join.scheduler);
        self->send(state.scheduler,
                   RankReady{state.communicator->rank().value, state.communicator->epoch().value, caf::actor_cast<caf::actor>(self)});
      },
      [=](const StepPlan& plan) { run(self, plan); },
      [=](const Probe& probe) {
        RankState& state = self->state;
        if (!state.communicator) return;
        self->send(state.scheduler, RankStatus{state.communicator->rank().value, state.communicator->epoch().value, probe.sent_ms,
                                               state.executor->expert_counts().tokens});
      },
  };
}

}  // namespace althing::actors
