// A core, a model rank and a judge: after every event the invariants are checked, every plan is run on the model rank, and every effect is
// held against what its request must see. Scripts and the random simulation differ only in the events they choose.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core.hpp"
#include "tests/scheduler/rank_model.hpp"

namespace althing::tests {

class CoreHarness {
 public:
  // What a request has seen so far.
  struct Stream {
    Submitted submitted;
    LoneRun expected;
    std::vector<TokenId> tokens;
    std::optional<Finished> finished;
    std::optional<std::size_t> stopped_at;  // its text ended it, with so many tokens
    std::uint32_t draws_ready = 0;          // of a constrained one: so many tokens may be drawn
  };

  explicit CoreHarness(const scheduler::CoreConfig& config) : config_(config), rank_(new_rank()) {
    auto core = scheduler::Core::create(config);
    if (core.ok())
      core_ = std::move(*core);
    else
      broken_ = core.error().message;
  }

  // Feeds one event and judges the outcome; the first thing that is wrong stays in broken(). REQUIRES: broken() is empty.
  const std::vector<Effect>& on(const Event& event) {
    if (const auto* done = std::get_if<StepDone>(&event); done != nullptr && !awaited_.empty() && answers(done->result)) {
      awaited_.pop_front();
      rank_.done(done->result.step);
    }
    reshaped_ = false;
    if (const auto* stopped = std::get_if<Stopped>(&event)) note_stop(*stopped);
    if (const auto* draws = std::get_if<DrawsReady>(&event))
      if (const auto found = streams_.find(draws->request); found != streams_.end())
        found->second.draws_ready = std::max(found->second.draws_ready, draws->until);
    const auto effects = core_->on(event);
    effects_.assign(effects.begin(), effects.end());
    if (const auto* submitted = std::get_if<Submitted>(&event)) judge_answer(*submitted);
    if (const auto* lost = std::get_if<RanksLost>(&event)) {
      if (lost->epoch >= epoch_) void_awaited();
      lost_ = std::max(lost_, lost->epoch);
    }
    if (const auto* ready = std::get_if<RanksReady>(&event); ready != nullptr && ready->epoch > std::max(epoch_, lost_)) {
      void_awaited();
      epoch_ = ready->epoch;
      if (ready->shape) reshape(*ready->shape);
    }
    if (core_->stats().ready != (epoch_ > lost_)) fail("ready when it should not be, or the other way round");
    for (const Effect& effect : effects_) judge(effect);
    judge_ends_due(event);
    if (broken_.empty()) broken_ = core_->check_invariants();
    return effects_;
  }

  // A new membership, with what the mirror of the model rank has.
  RanksReady ready(EpochId epoch) { return RanksReady{epoch, std::nullopt, {0x5EED, 0xF00D}, rank_.mirror().contents()}; }
  // Another core takes the place of this one, as after its death: it knows of no request, and the ranks and their mirror stay. It has to hear that
  // epochs up to the present one are lost.
  void replace_core() {
    void_awaited();
    core_ = std::move(*scheduler::Core::create(config_));
    lost_ = epoch_;
    streams_.clear();
    live_ = 0;
    rank_.forget_rows();
  }
  RankModel& rank() { return rank_; }
  const scheduler::CoreConfig& config() const { return config_; }  // with the shape of the newest membership
  KvShape shape() const { return {config_.dp_groups, config_.kv, config_.mirror_slots, config_.mirror_identity}; }

  // The rank's answer to the oldest step in flight. REQUIRES: awaited() > 0.
  const StepResult& next_result() const { return awaited_.front(); }
  std::size_t awaited() const { return awaited_.size(); }
  void deliver() { on(StepDone{StepResult(awaited_.front())}); }
  // Until nothing is in flight.
  void deliver_all() {
    while (broken_.empty() && !awaited_.empty()) deliver();
  }

  // The next draw of this request may be spoilt on purpose: it may end with an internal error.
  void expect_spoilt(RequestId request) { spoilt_.insert(request); }

  // The next submission of this request is wrong on purpose: it must not be accepted.
  void expect_refused(RequestId request) { refused_ = request; }

  const std::string& broken() const { return broken_; }
  scheduler::CoreStats stats() const { return core_->stats(); }
  const scheduler::Core& core() const { return *core_; }
  const std::map<RequestId, Stream>& streams() const { return streams_; }
  const std::vector<Effect>& effects() const { return effects_; }
  const std::vector<StepPlan>& plans() const { return plans_; }
  const std::vector<StepResult>& voided() const { return voided_; }
  EpochId epoch() const { return epoch_; }
  EpochId lost() const { return lost_; }
  std::size_t live() const { return live_; }

  // What on() does with each effect.
  void judge(const Effect& effect) {
    if (const auto* run = std::get_if<RunStep>(&effect)) {
      StepResult result;
      if (auto broken = rank_.apply(run->plan, result); !broken.empty()) fail("step " + std::to_string(run->plan.step.value) + ": " + broken);
      awaited_.push_back(std::move(result));
      plans_.push_back(run->plan);
    } else if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) {
      judge_tokens(*drawn);
    } else if (const auto* finished = std::get_if<Finished>(&effect)) {
      judge_end(*finished);
    }
  }

 private:
  // The core takes a result by step and epoch; what it says is another matter.
  bool answers(const StepResult& result) const {
    return result.step == awaited_.front().step && result.epoch == awaited_.front().epoch && core_->stats().ready;
  }

  RankModel new_rank() const {
    const auto salt_of = [this](RequestId request) {
      const auto found = streams_.find(request);
      return found == streams_.end() ? PageKey{} : found->second.submitted.salt;
    };
    return {config_.limits, config_.kv, config_.vocabulary, config_.dp_groups, [this](RequestId request) { return truth(request); }, salt_of};
  }

  std::vector<TokenId> truth(RequestId request) const {
    const auto found = streams_.find(request);
    if (found == streams_.end()) return {};
    std::vector<TokenId> tokens = found->second.submitted.prompt;
    tokens.insert(tokens.end(), found->second.expected.tokens.begin(), found->second.expected.tokens.end());
    return tokens;
  }

  // Ranks of another shape are others to the core: whatever they held before is gone.
  void reshape(const KvShape& shape) {
    if (shape == this->shape()) return;
    config_.dp_groups = shape.dp_groups;
    config_.kv = shape.layout;
    config_.mirror_slots = shape.mirror_slots;
    config_.mirror_identity = shape.mirror_identity;
    rank_ = new_rank();
    reshaped_ = true;
  }

  void void_awaited() {
    for (StepResult& result : awaited_) voided_.push_back(std::move(result));
    awaited_.clear();
  }

  void fail(const std::string& why) {
    if (broken_.empty()) broken_ = why;
  }

  void judge_answer(const Submitted& submitted) {
    if (effects_.empty()) return fail("a submission without an answer");
    const auto* accepted = std::get_if<Accepted>(&effects_.front());
    const auto* rejected = std::get_if<Rejected>(&effects_.front());
    if (accepted == nullptr && rejected == nullptr) return fail("a submission answered by something else");
    const bool wrong = std::exchange(refused_, std::nullopt) == submitted.request;
    if (wrong && accepted != nullptr) return fail("a submission that is wrong on purpose was accepted");
    if ((accepted != nullptr ? accepted->request : rejected->request) != submitted.request) return fail("another request was answered");
    if (accepted == nullptr) {
      if (rejected->error.message.empty()) fail("a rejection without a reason");
      return;
    }
    for (std::uint32_t i = 0; i < submitted.choices; ++i) {
      // What this choice would be alone.
      Submitted alone = submitted;
      alone.request.value += i;
      alone.sampling.choice += i;
      alone.choices = 1;
      const auto found = streams_.find(alone.request);
      if (found != streams_.end() && !found->second.finished) return fail("a live request was accepted again");
      streams_[alone.request] = Stream{alone, lone_run(alone, config_.limits, config_.vocabulary), alone.drawn, {}, {}, alone.draws_ready};
      ++live_;
    }
  }

  // A cancellation or a deadline takes effect in the very event that brings it.
  void judge_ends_due(const Event& event) {
    if (const auto* cancelled = std::get_if<Cancelled>(&event)) {
      const auto found = streams_.find(cancelled->request);
      if (found != streams_.end() && !found->second.finished) fail("a cancelled request lives on");
    } else if (const auto* stopped = std::get_if<Stopped>(&event)) {
      const auto found = streams_.find(stopped->request);
      if (found != streams_.end() && !found->second.finished) fail("a stopped request lives on");
    } else if (const auto* ticked = std::get_if<Ticked>(&event)) {
      for (const auto& [request, stream] : streams_)
        if (!stream.finished && stream.submitted.deadline_ms != 0 && stream.submitted.deadline_ms <= ticked->now_ms)
          fail("request " + std::to_string(request.value) + " outlives its deadline");
    }
  }

  void note_stop(const Stopped& stopped) {
    const auto found = streams_.find(stopped.request);
    if (found == streams_.end() || found->second.finished) return;
    found->second.stopped_at = std::min<std::size_t>(stopped.completion_tokens, found->second.tokens.size());
  }

  void judge_tokens(const TokensDrawn& drawn) {
    const std::string who = "request " + std::to_string(drawn.request.value) + ": ";
    const auto found = streams_.find(drawn.request);
    if (found == streams_.end() || found->second.finished) return fail(who + "tokens for a request that is not live");
    Stream& stream = found->second;
    if (drawn.first != stream.tokens.size()) return fail(who + "tokens have a gap or come twice");
    for (const TokenId token : drawn.tokens) {
      const std::size_t index = stream.tokens.size();
      if (index >= stream.expected.tokens.size()) return fail(who + "more tokens than a lone run has");
      if (stream.submitted.constrained && index >= stream.draws_ready)
        return fail(who + "token " + std::to_string(index) + " came before its draw was ready");
      if (stream.expected.tokens[index] != token) return fail(who + "token " + std::to_string(index) + " differs from a lone run");
      stream.tokens.push_back(token);
    }
  }

  void judge_end(const Finished& finished) {
    const std::string who = "request " + std::to_string(finished.request.value) + ": ";
    const auto found = streams_.find(finished.request);
    if (found == streams_.end()) return fail(who + "finished but never accepted");
    Stream& stream = found->second;
    if (stream.finished) return fail(who + "finished twice");
    stream.finished = finished;
    --live_;
    if (finished.usage.prompt_tokens != stream.submitted.prompt.size()) return fail(who + "usage counts another prompt");
    if (stream.stopped_at) {
      if (finished.reason != FinishReason::stop) return fail(who + "stopped by its text and ended otherwise");
      if (finished.usage.completion_tokens != *stream.stopped_at) fail(who + "usage counts other tokens than up to the one that stopped it");
      return;
    }
    if (finished.usage.completion_tokens != stream.tokens.size()) return fail(who + "usage counts other tokens than were reported");
    const bool whole = stream.tokens.size() == stream.expected.tokens.size();
    const ErrorCode code = finished.error.code;
    switch (finished.reason) {
      case FinishReason::stop:
      case FinishReason::length:
        if (!whole || stream.expected.reason != finished.reason) fail(who + "ended before or otherwise than a lone run");
        return;
      case FinishReason::cancelled:
        return;
      case FinishReason::error:
        if (code == ErrorCode::nonfinite && !(whole && stream.expected.reason == FinishReason::error)) fail(who + "nonfinite, but not in a lone run");
        if (code == ErrorCode::internal && !spoilt_.contains(finished.request)) fail(who + "internal error: " + finished.error.message);
        if (code == ErrorCode::too_large && !reshaped_) fail(who + "it fitted when it was accepted, and nothing has changed since");
        if (finished.error.message.empty()) fail(who + "an error without a message");
        return;
    }
  }

  scheduler::CoreConfig config_;
  RankModel rank_;
  std::unique_ptr<scheduler::Core> core_;
  std::deque<StepResult> awaited_;  // of the current epoch, oldest first
  std::vector<StepResult> voided_;  // answers of epochs that are over: a zombie may still send them
  std::map<RequestId, Stream> streams_;
  std::set<RequestId> spoilt_;
  std::optional<RequestId> refused_;
  std::vector<Effect> effects_;
  std::vector<StepPlan> plans_;
  EpochId epoch_;
  EpochId lost_;
  std::size_t live_ = 0;
  bool reshaped_ = false;  // in the event in hand
  std::string broken_;
};

}  // namespace althing::tests
