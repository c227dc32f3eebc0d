// The rules: see the header. They are those of events.hpp and plan.hpp, and two of our own: who is accepted starts before the others have computed
// more than their share, and the core has no sequence that nobody waits for.
#include "tests/simulation/core_judge.hpp"

#include <algorithm>
#include <utility>

namespace althing::tests {
namespace {

// How often the work in front of a request may be computed before it starts: tokens of those who gave way, or whose epoch was lost, are computed
// again, and other tenants have their turn.
constexpr std::uint64_t patience_factor = 4, patience_tokens = 1'000;

bool is_whole(FinishReason reason) { return reason == FinishReason::stop || reason == FinishReason::length; }

}  // namespace

CoreJudge::CoreJudge(Stage& stage) : stage_(stage), config_(stage.setup.core), believed_(shape()), rank_(new_rank()), fairness_(config_.limits) {}

std::unique_ptr<RankModel> CoreJudge::new_rank() const {
  const auto truth = [this](RequestId request) {
    const auto found = live_.find(request);
    if (found == live_.end()) return std::vector<TokenId>{};
    std::vector<TokenId> tokens = found->second.submitted.prompt;
    tokens.insert(tokens.end(), found->second.expected.tokens.begin(), found->second.expected.tokens.end());
    return tokens;
  };
  const auto salt_of = [this](RequestId request) {
    const auto found = live_.find(request);
    return found == live_.end() ? PageKey{} : found->second.submitted.salt;
  };
  return std::make_unique<RankModel>(config_.limits, config_.kv, config_.vocabulary, config_.dp_groups, truth, salt_of);
}

void CoreJudge::replace_core() {
  void_awaited();
  results_.clear();
  live_.clear();
  fairness_.reset();
  rank_->forget_rows();
  lost_ = epoch_;
  const scheduler::CoreConfig& full = stage_.setup.core;
  believed_ = {full.dp_groups, full.kv, full.mirror_slots, full.mirror_identity};
  now_ms_ = 0;
  draining_ = false;
}

StepResult CoreJudge::take_result(StepId step) {
  StepResult result = std::move(results_[step]);
  results_.erase(step);
  return result;
}

RanksReady CoreJudge::ready(EpochId epoch, const KvShape& shape) {
  const bool same = shape == this->shape();
  // Mirrors of another shape hold none of these pages.
  return RanksReady{epoch, shape, {0x5EED, 0xF00D}, same ? rank_->mirror().contents() : std::vector<MirroredPage>{}};
}

void CoreJudge::before(const Event& event) {
  reshaped_ = false;
  if (const auto* done = std::get_if<StepDone>(&event)) {
    const bool answers = !awaited_.empty() && done->result.step == awaited_.front().step && done->result.epoch == awaited_.front().epoch;
    if (!answers || epoch_ <= lost_) return;
    awaited_.pop_front();
    rank_->done(done->result.step);
    ++sums_.steps;
  } else if (const auto* stopped = std::get_if<Stopped>(&event)) {
    const auto found = live_.find(stopped->request);
    if (found != live_.end()) found->second.stopped = std::min(stopped->completion_tokens, found->second.told);
  } else if (const auto* draws = std::get_if<DrawsReady>(&event)) {
    const auto found = live_.find(draws->request);
    if (found != live_.end()) found->second.draws_ready = std::max(found->second.draws_ready, draws->until);
  } else if (const auto* ticked = std::get_if<Ticked>(&event)) {
    now_ms_ = std::max(now_ms_, ticked->now_ms);
  }
}

void CoreJudge::after(const Event& event, std::span<const Effect> effects, const scheduler::CoreStats& stats) {
  if (const auto* submitted = std::get_if<Submitted>(&event)) judge_answer(*submitted, effects);
  if (const auto* lost = std::get_if<RanksLost>(&event)) {
    if (lost->epoch >= epoch_) {
      void_awaited();
      fairness_.lost();
    }
    lost_ = std::max(lost_, lost->epoch);
  }
  if (const auto* ready = std::get_if<RanksReady>(&event); ready != nullptr && ready->epoch > std::max(epoch_, lost_)) {
    void_awaited();
    epoch_ = ready->epoch;
    take_shape(*ready->shape);
  }
  if (std::holds_alternative<DrainStarted>(event)) draining_ = true;
  if (stats.ready != (epoch_ > lost_)) stage_.fail("the core is ready when it should not be, or the other way round");
  for (const Effect& effect : effects) {
    if (const auto* run = std::get_if<RunStep>(&effect)) judge(*run);
    if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) judge(*drawn);
    if (const auto* finished = std::get_if<Finished>(&effect)) judge(*finished);
    if (const auto* preempted = std::get_if<Preempted>(&effect)) judge(*preempted);
  }
  judge_ends_due(event);
  if (auto unfair = fairness_.check(); !unfair.empty()) stage_.fail(std::move(unfair));
  if (stats.running + stats.waiting != live_.size())
    stage_.fail("the core has " + std::to_string(stats.running + stats.waiting) + " sequences, and " + std::to_string(live_.size()) +
                " have not ended");
}

// Ranks of another shape are others: whatever they held before is gone.
void CoreJudge::take_shape(const KvShape& shape) {
  reshaped_ = std::exchange(believed_, shape) != shape;
  if (shape == this->shape()) return;
  config_.dp_groups = shape.dp_groups;
  config_.kv = shape.layout;
  config_.mirror_slots = shape.mirror_slots;
  config_.mirror_identity = shape.mirror_identity;
  rank_ = new_rank();
}

void CoreJudge::judge_answer(const Submitted& submitted, std::span<const Effect> effects) {
  const auto* accepted = effects.empty() ? nullptr : std::get_if<Accepted>(&effects.front());
  const auto* rejected = effects.empty() ? nullptr : std::get_if<Rejected>(&effects.front());
  if (accepted == nullptr && rejected == nullptr) return fail(submitted.request, "submitted, and not answered");
  if ((accepted != nullptr ? accepted->request : rejected->request) != submitted.request) return fail(submitted.request, "another was answered");
  if (accepted != nullptr) return accept(submitted);
  if (rejected->error.message.empty()) fail(submitted.request, "rejected without a reason");
}

void CoreJudge::accept(const Submitted& submitted) {
  if (draining_) return fail(submitted.request, "accepted while the server drains");
  std::uint64_t work = work_in_front(submitted), own = 0;
  const std::int64_t came = came_ms(submitted);
  for (std::uint32_t i = 0; i < submitted.choices; ++i) {
    Submitted alone = submitted;
    alone.request.value += i;
    alone.sampling.choice += i;
    alone.choices = 1;
    if (live_.contains(alone.request)) return fail(alone.request, "accepted while it is being served");
    Stream stream;
    stream.expected = lone_run(alone, config_.limits, config_.vocabulary);
    stream.told = static_cast<std::uint32_t>(alone.drawn.size());
    stream.submitted = std::move(alone);
    stream.accepted_at = stream.moved_at = sums_.computed;
    stream.came_ms = came;
    stream.draws_ready = submitted.draws_ready;
    own += work_of(stream);
    stream.allowed = patience_factor * (work + stage_.setup.workload.tenants * own) + patience_tokens;
    const RequestId request = stream.submitted.request;
    fairness_.begin(request, submitted.tenant, came, static_cast<std::uint32_t>(submitted.prompt.size()),
                    static_cast<std::uint32_t>(submitted.prompt.size()) + stream.told, i == 0 && !submitted.constrained);
    live_.emplace(request, std::move(stream));
    ++sums_.accepted;
  }
  // Those that came before it, and count as having come after it.
  for (auto& [request, stream] : live_)
    if (stream.submitted.tenant == submitted.tenant && stream.came_ms >= came)
      stream.allowed += patience_factor * stage_.setup.workload.tenants * own;
}

// As events.hpp and limits.hpp have it: a priority is a head start, and a deadline that is near is one too.
std::int64_t CoreJudge::came_ms(const Submitted& submitted) const {
  const Limits& limits = config_.limits;
  const std::int64_t at = static_cast<std::int64_t>(now_ms_) - std::int64_t{submitted.priority} * limits.priority_ms;
  return submitted.deadline_ms == 0 ? at : std::min(at, static_cast<std::int64_t>(submitted.deadline_ms) - limits.deadline_near_ms);
}

// All that is there may have to be computed first; and while that of its tenant is, the other tenants have as many tokens each.
std::uint64_t CoreJudge::work_in_front(const Submitted& submitted) const {
  std::uint64_t all = 0, own = 0;
  for (const auto& [request, stream] : live_) {
    all += work_of(stream);
    if (stream.submitted.tenant == submitted.tenant) own += work_of(stream);
  }
  return all + stage_.setup.workload.tenants * own;
}

void CoreJudge::judge(const RunStep& run) {
  StepResult result;
  if (epoch_ <= lost_) return stage_.fail("step " + std::to_string(run.plan.step.value) + " is ordered without a membership");
  for (const RowSetup& setup : run.plan.set) note_start(setup.request);
  if (auto broken = rank_->apply(run.plan, result); !broken.empty())
    return stage_.fail("step " + std::to_string(run.plan.step.value) + ": " + broken);
  for (const RowWork& work : run.plan.work) sums_.computed += work.count;
  if (auto passed_over = fairness_.planned(run.plan); !passed_over.empty()) stage_.fail(std::move(passed_over));
  stage_.note(run.plan.step.value, run.plan.epoch.value, run.plan.work.size(), run.plan.set.size(), run.plan.cleared.size());
  for (const DrawnToken& drawn : result.drawn) stage_.note(drawn.row.value, drawn.request.value, drawn.token);
  awaited_.push_back(result);
  results_[run.plan.step] = std::move(result);
}

void CoreJudge::note_start(RequestId request) {
  const auto found = live_.find(request);
  if (found == live_.end()) return fail(request, "gets a row and is not live");
  Stream& stream = found->second;
  if (std::exchange(stream.started, true)) return;
  stream.moved_at = sums_.computed;
  const std::uint64_t waited = sums_.computed - stream.accepted_at;
  sums_.worst_wait = std::max(sums_.worst_wait, waited * 1000 / stream.allowed);
  if (waited > stream.allowed)
    fail(request, "starved: " + std::to_string(waited) + " tokens were computed before it started, and " + std::to_string(stream.allowed) +
                      " are the most that those in front of it explain");
}

void CoreJudge::judge(const TokensDrawn& drawn) {
  stage_.note(drawn.request.value, drawn.first, drawn.tokens.size());
  const auto found = live_.find(drawn.request);
  if (found == live_.end()) return fail(drawn.request, "tokens for a request that is not live");
  Stream& stream = found->second;
  if (drawn.first != stream.told) return fail(drawn.request, "tokens have a gap or come twice");
  for (const TokenId token : drawn.tokens) {
    if (stream.submitted.constrained && stream.told >= stream.draws_ready)
      return fail(drawn.request, "a token comes before anybody has decided about it");
    if (stream.told >= stream.expected.tokens.size()) return fail(drawn.request, "more tokens than a lone run has");
    if (stream.expected.tokens[stream.told] != token) return fail(drawn.request, "token " + std::to_string(stream.told) + " differs from a lone run");
    ++stream.told;
  }
  // Who has begun may have to give way, but gets on.
  const std::uint64_t gap = sums_.computed - stream.moved_at;
  sums_.worst_gap = std::max(sums_.worst_gap, gap * 1000 / stream.allowed);
  if (gap > stream.allowed && !stream.submitted.constrained)
    fail(drawn.request, "does not get on: " + std::to_string(gap) + " tokens were computed between two of its own, and " +
                            std::to_string(stream.allowed) + " are the most");
  stream.moved_at = sums_.computed;
  sums_.tokens += drawn.tokens.size();
}

void CoreJudge::judge(const Preempted& preempted) {
  const auto found = live_.find(preempted.request);
  stage_.note(preempted.request.value, preempted.by.value);
  if (found == live_.end() || !found->second.started) fail(preempted.request, "preempted, and it does not run");
  if (!live_.contains(preempted.by)) fail(preempted.by, "another was preempted for it, and it is not live");
}

void CoreJudge::judge(const Finished& finished) {
  stage_.note(finished.request.value, finished.reason, finished.usage.completion_tokens);
  const auto found = live_.find(finished.request);
  if (found == live_.end()) return fail(finished.request, "finished twice, or never accepted");
  judge_end(finished, found->second);
  live_.erase(found);
  fairness_.end(finished.request);
  ++sums_.finished;
}

void CoreJudge::judge_end(const Finished& finished, const Stream& stream) {
  const RequestId who = finished.request;
  const ErrorCode code = finished.error.code;
  if (finished.usage.prompt_tokens != stream.submitted.prompt.size()) return fail(who, "usage counts another prompt");
  if (finished.usage.completion_tokens != stream.stopped.value_or(stream.told)) return fail(who, "usage counts other tokens than were told");
  if (stream.stopped) return finished.reason == FinishReason::stop ? void() : fail(who, "stopped by its text, and ended otherwise");
  const bool whole = stream.told == stream.expected.tokens.size();
  if (is_whole(finished.reason) && (!whole || stream.expected.reason != finished.reason))
    return fail(who, "ended before or otherwise than a lone run");
  if (finished.reason != FinishReason::error) return;
  if (code == ErrorCode::nonfinite && !(whole && stream.expected.reason == FinishReason::error)) return fail(who, "nonfinite, and not in a lone run");
  if (code == ErrorCode::internal) return fail(who, "internal error: " + finished.error.message);
  if (code == ErrorCode::too_large && !reshaped_) return fail(who, "it fitted when it was accepted, and nothing has changed since");
  if (code == ErrorCode::deadline && (stream.submitted.deadline_ms == 0 || stream.submitted.deadline_ms > now_ms_))
    return fail(who, "ended by a deadline that has not passed");
  if (finished.error.message.empty()) fail(who, "an error without a message");
}

// A cancellation or a deadline takes effect in the very event that brings it.
void CoreJudge::judge_ends_due(const Event& event) {
  if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
    if (live_.contains(cancelled->request)) fail(cancelled->request, "cancelled, and lives on");
  } else if (const auto* stopped = std::get_if<Stopped>(&event)) {
    if (live_.contains(stopped->request)) fail(stopped->request, "stopped by its text, and lives on");
  } else if (std::holds_alternative<Ticked>(event)) {
    for (const auto& [request, stream] : live_)
      if (stream.submitted.deadline_ms != 0 && stream.submitted.deadline_ms <= now_ms_) fail(request, "outlives its deadline");
  }
}

}  // namespace althing::tests
