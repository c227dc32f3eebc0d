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
  if (!state.communicator || state.broken || plan.epoch != state.communicator->epoch()) {
    log(LogLevel::info, "plan_fenced", {{"step", plan.step.value}, {"epoch", plan.epoch.value}});
    return;
  }
  state.pulse->busy = true;
  Result<StepResult> result = state.executor->run(plan, *state.communicator);
  state.pulse->busy = false;
  {
    const std::lock_guard lock(state.pulse->mutex);
    state.pulse->expert_tokens = state.executor->expert_counts().tokens;
  }
  const RankId rank = state.communicator->rank();
  if (result) {
    if (rank.value == 0) self->send(state.scheduler, std::move(*result));
    return;
  }
  state.broken = true;
  log(LogLevel::warning, "step_failed", {{"step", plan.step.value}, {"epoch", plan.epoch.value}, {"reason", result.error().message}});
  self->send(state.scheduler,
             StepFailed{rank.value, plan.epoch.value, plan.step.value, result.error().code == ErrorCode::invalid_argument, result.error().message});
}

void join(Self self, JoinEpoch& join) {
  RankState& state = self->state;
  state.communicator = std::move(join.communicator);
  state.scheduler = std::move(join.scheduler);
  state.broken = false;
  {
    const std::lock_guard lock(state.pulse->mutex);
    state.pulse->rank = state.communicator->rank().value;
  }
  state.pulse->epoch = state.communicator->epoch().value;
  self->send(state.scheduler, RankReady{state.communicator->rank().value, state.pulse->epoch, caf::actor_cast<caf::actor>(self), state.pulse_actor});
}

}  // namespace

caf::behavior rank_actor(Self self, std::shared_ptr<gpu::Executor> executor) {
  guard(self);
  auto pulse = std::make_shared<RankPulse>();
  gpu::Observer observer;
  observer.hidden = [pulse](std::uint32_t, std::span<const float>) { pulse->progress.fetch_add(1, std::memory_order_relaxed); };
  executor->observe(std::move(observer));
  self->state.executor = std::move(executor);
  self->state.pulse = pulse;
  self->state.pulse_actor = self->spawn<caf::linked>(pulse_actor, std::move(pulse));
  return {
      [=](JoinEpoch& epoch) { join(self, epoch); },
      [=](const StepPlan& plan) { run(self, plan); },
  };
}

caf::behavior pulse_actor(caf::event_based_actor* self, std::shared_ptr<RankPulse> pulse) {
  guard(self);
  return {
      [=](const Probe& probe) {
        const std::lock_guard lock(pulse->mutex);
        return RankStatus{pulse->rank, pulse->epoch, probe.sent_ms, pulse->busy, pulse->progress, pulse->expert_tokens};
      },
  };
}

}  // namespace althing::actors
