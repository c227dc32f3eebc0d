// Stands between the core and everybody else, and holds what it says against what each request must see: an answer, its tokens as a lone run has
// them, one end. Every plan is run on the model rank the moment it is ordered; when its answer gets to the core is the ranks' business
// (rank_processes.hpp). Knows requests of one core; another core's are others.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/scheduler/rank_model.hpp"
#include "tests/simulation/fairness_judge.hpp"
#include "tests/simulation/stage.hpp"

namespace althing::tests {

class CoreJudge {
 public:
  explicit CoreJudge(Stage& stage);

  // Before and after the core hears of an event. Whatever is wrong goes to the stage.
  void before(const Event& event);
  void after(const Event& event, std::span<const Effect> effects, const scheduler::CoreStats& stats);
  // Another core takes this one's place.
  void replace_core();

  // What the ranks answer to a step of this core. REQUIRES: it was ordered, and not asked for before.
  StepResult take_result(StepId step);
  // A fresh membership as the core is to hear of it.
  RanksReady ready(EpochId epoch, const KvShape& shape);
  RankModel& rank() { return *rank_; }
  std::size_t live() const { return live_.size(); }

  // Over all cores.
  struct Sums {
    std::uint64_t accepted = 0, finished = 0, tokens = 0, steps = 0, computed = 0;
    std::uint64_t worst_wait = 0;  // of a request for its first row, in thousandths of what is allowed …
    std::uint64_t worst_gap = 0;   // … and for its next token
  };
  const Sums& sums() const { return sums_; }
  std::uint64_t worst_lead() const { return fairness_.worst(); }  // of a tenant, in thousandths of what is allowed

 private:
  struct Stream {
    Submitted submitted;  // this choice's alone
    LoneRun expected;
    std::uint32_t told = 0;                // tokens
    std::optional<std::uint32_t> stopped;  // its text ended it, with so many tokens
    std::uint32_t draws_ready = 0;         // of a constrained one: so many tokens may be drawn
    bool started = false;
    std::int64_t came_ms = 0;       // as it counts among those of its tenant
    std::uint64_t accepted_at = 0;  // tokens that had been computed then …
    std::uint64_t moved_at = 0;     // … and when it last had one
    std::uint64_t allowed = 0;      // that may be computed before it starts
  };

  void judge_answer(const Submitted& submitted, std::span<const Effect> effects);
  void accept(const Submitted& submitted);
  void judge(const RunStep& run);
  void judge(const TokensDrawn& drawn);
  void judge(const Finished& finished);
  void judge(const Preempted& preempted);
  void judge_end(const Finished& finished, const Stream& stream);
  void judge_ends_due(const Event& event);
  void note_start(RequestId request);
  std::int64_t came_ms(const Submitted& submitted) const;
  std::uint64_t work_in_front(const Submitted& submitted) const;
  static std::uint64_t work_of(const Stream& stream) { return stream.submitted.prompt.size() + stream.expected.tokens.size(); }
  std::unique_ptr<RankModel> new_rank() const;
  KvShape shape() const { return {config_.dp_groups, config_.kv, config_.mirror_slots, config_.mirror_identity}; }
  void take_shape(const KvShape& shape);
  void void_awaited() { awaited_.clear(); }
  void fail(RequestId request, const std::string& why) { stage_.fail("request " + std::to_string(request.value) + ": " + why); }

  Stage& stage_;
  scheduler::CoreConfig config_;  // with the shape of the newest membership
  KvShape believed_;              // by the core: another one begins with the full grid's
  std::unique_ptr<RankModel> rank_;
  FairnessJudge fairness_;
  std::map<RequestId, Stream> live_;
  std::deque<StepResult> awaited_;  // of the present epoch, oldest first
  std::map<StepId, StepResult> results_;
  EpochId epoch_, lost_;
  std::uint64_t now_ms_ = 0;
  bool reshaped_ = false;  // in the event in hand
  bool draining_ = false;
  Sums sums_;
};

}  // namespace althing::tests
