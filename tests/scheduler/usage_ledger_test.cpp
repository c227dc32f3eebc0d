// Who pays for what: steps made by hand with shares known exactly, and whole lives of the core whose tallies must add up to its steps.
#include "scheduler/usage_ledger.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using scheduler::UsageLedger;
using scheduler::UsageTally;

StepPlan step_of(std::uint64_t number, std::vector<RowSetup> set, std::vector<RowWork> work) {
  StepPlan plan;
  plan.step = StepId{number};
  plan.snapshot = number == 1;
  plan.set = std::move(set);
  plan.work = std::move(work);
  return plan;
}
RowSetup row_for(std::uint32_t row, std::uint64_t request) { return {RowIndex{row}, RequestId{request}, {}, {}}; }
RowWork tokens(std::uint32_t row, std::uint32_t start, std::uint32_t count) { return {RowIndex{row}, start, count, {}, false}; }
Finished end_of(std::uint64_t request, std::uint32_t completion, FinishReason reason = FinishReason::stop) {
  return {RequestId{request}, reason, {4, completion, 0}, Error{ErrorCode::cancelled, "", {}}};
}
std::map<std::uint64_t, UsageTally> closed(UsageLedger& ledger) {
  std::map<std::uint64_t, UsageTally> found;
  for (const auto& one : ledger.take_closed())
    if (one.accepted) found[one.request.value] = one.tally;
  return found;
}

// 100 ns over 1 + 2 + 4 tokens: 14, 28 and 58 as differences of 14, 42 and 100.
TEST(UsageLedger, a_step_is_shared_by_tokens_to_the_nanosecond) {
  UsageLedger ledger;
  for (const std::uint64_t id : {1u, 2u, 3u}) ledger.open(RequestId{id}, RequestId{id}, 4, false);
  ledger.planned(step_of(1, {row_for(0, 1), row_for(1, 2), row_for(2, 3)}, {tokens(0, 0, 1), tokens(1, 0, 2), tokens(2, 0, 4)}));
  ledger.done(StepId{1}, 100);
  for (const std::uint64_t id : {1u, 2u, 3u}) ledger.finished(end_of(id, 1));
  auto tallies = closed(ledger);
  ASSERT_EQ(tallies.size(), 3u);
  EXPECT_EQ(tallies[1].device_ns, 14u);
  EXPECT_EQ(tallies[2].device_ns, 28u);
  EXPECT_EQ(tallies[3].device_ns, 58u);
  EXPECT_EQ(ledger.device_ns(), 100u);
  EXPECT_EQ(ledger.unattributed_ns(), 0u);
  EXPECT_EQ(ledger.open_requests(), 0u);
}

TEST(UsageLedger, what_was_in_flight_at_the_end_is_still_its_own) {
  UsageLedger ledger;
  ledger.open(RequestId{1}, RequestId{1}, 4, false);
  ledger.planned(step_of(1, {row_for(0, 1)}, {tokens(0, 0, 4)}));
  ledger.planned(step_of(2, {}, {tokens(0, 4, 1)}));
  ledger.done(StepId{1}, 40);
  ledger.finished(end_of(1, 1, FinishReason::cancelled));
  EXPECT_TRUE(closed(ledger).empty()) << "a step computes for it";
  StepPlan clears = step_of(3, {}, {});
  clears.cleared = {RowIndex{0}};
  ledger.planned(clears);
  ledger.done(StepId{2}, 10);
  auto tallies = closed(ledger);
  ASSERT_EQ(tallies.size(), 1u);
  EXPECT_EQ(tallies[1].device_ns, 50u);
  EXPECT_EQ(tallies[1].computed_tokens, 5u);
  EXPECT_EQ(tallies[1].reason, FinishReason::cancelled);
  EXPECT_EQ(tallies[1].code, ErrorCode::cancelled);
  ledger.done(StepId{3}, 7);
  EXPECT_EQ(ledger.unattributed_ns(), 7u) << "a step without tokens is nobody's";
}

TEST(UsageLedger, positions_computed_twice_are_recomputed_and_those_that_came_back_are_restored) {
  UsageLedger ledger;
  ledger.open(RequestId{1}, RequestId{1}, 4, false);
  ledger.planned(step_of(1, {row_for(0, 1)}, {tokens(0, 0, 4)}));
  ledger.done(StepId{1}, 1);
  ledger.planned(step_of(2, {}, {tokens(0, 4, 1)}));
  ledger.lost();  // the fifth position was planned and not computed
  StepPlan again = step_of(3, {row_for(2, 1)}, {tokens(2, 2, 4)});
  again.snapshot = true;
  ledger.planned(again);
  ledger.done(StepId{3}, 1);
  ledger.finished(end_of(1, 2));
  const UsageTally tally = closed(ledger)[1];
  EXPECT_EQ(tally.computed_tokens, 8u);
  EXPECT_EQ(tally.recomputed_tokens, 2u);  // positions 2 and 3
  EXPECT_EQ(tally.restored_tokens, 2u);    // positions 0 and 1
  EXPECT_EQ(tally.device_ns, 2u);
}

TEST(UsageLedger, choices_are_one_tally_that_waits_for_the_last) {
  UsageLedger ledger;
  for (const std::uint64_t id : {5u, 6u}) ledger.open(RequestId{id}, RequestId{5}, 4, false);
  ledger.planned(step_of(1, {row_for(0, 5), row_for(1, 6)}, {tokens(0, 0, 4), tokens(1, 0, 4)}));
  ledger.done(StepId{1}, 9);
  ledger.finished(end_of(5, 3));
  EXPECT_TRUE(closed(ledger).empty());
  ledger.finished(end_of(6, 4, FinishReason::length));
  const UsageTally tally = closed(ledger)[5];
  EXPECT_EQ(tally.choices, 2u);
  EXPECT_EQ(tally.prompt_tokens, 4u);
  EXPECT_EQ(tally.completion_tokens, 7u);
  EXPECT_EQ(tally.computed_tokens, 8u);
  EXPECT_EQ(tally.device_ns, 9u);
  EXPECT_EQ(tally.reason, FinishReason::length);
}

TEST(UsageLedger, what_was_never_accepted_is_closed_as_such) {
  UsageLedger ledger;
  for (const std::uint64_t id : {5u, 6u}) ledger.open(RequestId{id}, RequestId{5}, 4, false);
  ledger.refused(RequestId{5});
  ledger.refused(RequestId{6});
  ledger.refused(RequestId{6});
  EXPECT_TRUE(closed(ledger).empty());
  EXPECT_EQ(ledger.open_requests(), 0u);
  // Of two that a dead core left one is refused: the other is the request.
  for (const std::uint64_t id : {7u, 8u}) ledger.open(RequestId{id}, RequestId{7}, 4, true);
  ledger.refused(RequestId{7});
  ledger.finished(end_of(8, 2));
  const auto tallies = closed(ledger);
  ASSERT_EQ(tallies.size(), 1u);
  EXPECT_EQ(tallies.at(7).choices, 1u);
  EXPECT_TRUE(tallies.at(7).taken_over);
}

// 2 pages of 100 bytes for 3 s, then 5 for 1 s, then none.
TEST(UsageLedger, pages_are_charged_for_as_long_as_they_are_held) {
  UsageLedger ledger;
  for (const std::uint64_t id : {1u, 2u}) ledger.open(RequestId{id}, RequestId{id}, 4, false);
  ledger.hold({{RequestId{2}, 1}, {RequestId{1}, 2}}, 100, 1'000'000);
  ledger.hold({{RequestId{1}, 2}, {RequestId{2}, 1}}, 100, 2'000'000);
  ledger.hold({{RequestId{1}, 5}, {RequestId{2}, 1}}, 100, 4'000'000);
  ledger.hold({{RequestId{2}, 1}}, 100, 5'000'000);
  ledger.finished(end_of(1, 1));
  ledger.hold({}, 100, 11'000'000);
  ledger.finished(end_of(2, 1));
  auto tallies = closed(ledger);
  EXPECT_DOUBLE_EQ(tallies[1].kv_byte_seconds, 2 * 100 * 3 + 5 * 100 * 1);
  EXPECT_DOUBLE_EQ(tallies[2].kv_byte_seconds, 1 * 100 * 10);
}

// A core with little room and many requests: they preempt each other, some are cancelled, ranks are lost.
class LedgerOfACore : public CoreScript {
 protected:
  // An event, as the scheduler's shell tells the ledger of it. A step takes 1000 ns and a few more.
  void feed(const Event& event) {
    if (const auto* submitted = std::get_if<Submitted>(&event))
      for (std::uint32_t i = 0; i < submitted->choices; ++i)
        ledger_.open(RequestId{submitted->request.value + i}, submitted->request, static_cast<std::uint32_t>(submitted->prompt.size()), false);
    if (std::holds_alternative<RanksLost>(event)) ledger_.lost();
    const std::uint64_t before = harness().stats().steps_done;
    const auto effects = on(event);
    ledger_.hold(harness().core().held_pages(), 64, now_us_ += 10);
    held_ += harness().stats().pages_used;
    for (const Effect& effect : effects) {
      if (const auto* run = std::get_if<RunStep>(&effect)) ledger_.planned(run->plan);
      if (const auto* end = std::get_if<Finished>(&effect)) ledger_.finished(*end);
      if (const auto* no = std::get_if<Rejected>(&effect)) ledger_.refused(no->request);
    }
    if (harness().stats().steps_done > before) {
      const std::uint64_t ns = 1000 + 7 * harness().stats().steps_done;
      ledger_.done(std::get<StepDone>(event).result.step, ns);
      spent_ns_ += ns;
    }
    for (const auto& one : ledger_.take_closed()) {
      tallies_.push_back(one.tally);
      EXPECT_TRUE(seen_.insert(one.request).second) << "closed twice";
    }
  }
  void answer() { feed(StepDone{StepResult(harness().next_result())}); }

  UsageLedger ledger_;
  std::vector<UsageTally> tallies_;
  std::set<RequestId> seen_;
  std::uint64_t now_us_ = 0, spent_ns_ = 0, held_ = 0;
};

TEST_F(LedgerOfACore, tallies_add_up_to_its_steps) {
  auto config = easy_config();
  config.kv.page_count = 16;
  start(config);
  feed(ready(1));
  for (std::uint64_t id = 1; id <= 6; ++id) {
    Submitted submitted = request(10 * id, 5 + static_cast<std::uint32_t>(id), 24);
    submitted.choices = id == 2 ? 2 : 1;
    feed(submitted);
  }
  for (int i = 0; i < 9; ++i) answer();
  feed(cancelled(10));
  for (int i = 0; i < 3; ++i) answer();
  feed(lost(1));
  feed(ready(2));
  while (harness().awaited() > 0) answer();

  const auto stats = harness().stats();
  EXPECT_EQ(tallies_.size(), 6u);
  EXPECT_EQ(ledger_.open_requests(), 0u);
  UsageTally sum;
  for (const UsageTally& tally : tallies_) {
    sum.device_ns += tally.device_ns;
    sum.computed_tokens += tally.computed_tokens;
    sum.recomputed_tokens += tally.recomputed_tokens;
    sum.completion_tokens += tally.completion_tokens;
    sum.preemptions += tally.preemptions;
    sum.kv_byte_seconds += tally.kv_byte_seconds;
  }
  EXPECT_EQ(sum.device_ns + ledger_.unattributed_ns(), spent_ns_);
  EXPECT_EQ(ledger_.device_ns(), spent_ns_);
  EXPECT_EQ(sum.completion_tokens, stats.completion_tokens);
  EXPECT_EQ(sum.recomputed_tokens, stats.tokens_recomputed);
  EXPECT_EQ(sum.preemptions, stats.preemptions);
  EXPECT_GT(sum.preemptions, 0u) << "the pool must be too small for all";
  EXPECT_GT(sum.recomputed_tokens, 0u);
  // What the pool had in use between two events was somebody's, but for pages that a step in flight kept from going back.
  EXPECT_GT(sum.kv_byte_seconds, 0.0);
  EXPECT_LE(sum.kv_byte_seconds, static_cast<double>(held_) * 64 * 10e-6 * (1 + 1e-9));
  EXPECT_GE(sum.kv_byte_seconds, static_cast<double>(held_) * 64 * 10e-6 * 0.8);
}

}  // namespace
}  // namespace althing::tests
