// Ranks come and go: steps of a dead epoch are void, tokens are kept, and streams continue without a gap, a doubled or a changed token.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CoreMembership = CoreScript;

TEST_F(CoreMembership, lost_ranks_send_rows_back_to_waiting_with_their_tokens) {
  start();
  on(ready(1));
  on(request(1, 5, 10));
  deliver();
  deliver();
  EXPECT_TRUE(on(lost(1)).empty());
  EXPECT_EQ(harness().stats().running, 0u);
  EXPECT_EQ(harness().stats().waiting, 1u);
  EXPECT_EQ(harness().stats().pages_used, 0u);
  EXPECT_FALSE(harness().stats().ready);
  const auto plans = all<RunStep>(on(ready(2)));
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_TRUE(plans[0].plan.snapshot);
  EXPECT_EQ(plans[0].plan.epoch, EpochId{2});
  // The prompt's 5 tokens and the 2 generated ones are recomputed in one chunk.
  EXPECT_EQ(plans[0].plan.work.at(0).count, 7u);
  EXPECT_EQ(plans[0].plan.work.at(0).tokens.size(), 7u);
  const auto drawn = all<TokensDrawn>(deliver());
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_EQ(drawn[0].first, 2u);
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 10u);
  EXPECT_EQ(stream(1).finished->usage.preemptions, 0u) << "a fault is not a preemption";
  expect_baseline();
}

TEST_F(CoreMembership, answers_of_a_dead_epoch_are_void) {
  start();
  on(ready(1));
  on(request(1, 5, 10));
  const StepResult zombie = harness().next_result();
  on(lost(1));
  EXPECT_TRUE(on(StepDone{StepResult(zombie)}).empty());
  on(ready(2));
  EXPECT_TRUE(on(StepDone{StepResult(zombie)}).empty());
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 10u);
}

TEST_F(CoreMembership, step_numbers_go_on_across_epochs) {
  start();
  on(ready(1));
  on(request(1, 5, 10));
  on(lost(1));
  on(ready(2));
  run_to_end();
  std::uint64_t step = 0;
  for (const StepPlan& plan : harness().plans()) EXPECT_EQ(plan.step.value, ++step);
}

TEST_F(CoreMembership, old_news_is_ignored) {
  start();
  on(ready(3));
  on(request(1, 5, 10));
  EXPECT_TRUE(on(lost(2)).empty());
  EXPECT_TRUE(harness().stats().ready);
  EXPECT_TRUE(on(ready(3)).empty());
  EXPECT_TRUE(on(ready(2)).empty());
  on(lost(3));
  EXPECT_TRUE(on(ready(3)).empty()) << "a lost epoch cannot come back";
  EXPECT_FALSE(harness().stats().ready);
  on(ready(4));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
}

TEST_F(CoreMembership, a_membership_that_is_lost_before_it_was_ready_stays_lost) {
  start();
  on(request(1, 5, 3));
  on(lost(5));
  EXPECT_TRUE(on(ready(5)).empty());
  EXPECT_EQ(all<RunStep>(on(ready(6))).size(), 2u);
  run_to_end();
}

TEST_F(CoreMembership, a_new_membership_without_news_of_a_loss_voids_the_old_steps) {
  start();
  on(ready(1));
  on(request(1, 5, 10));
  const StepResult old = harness().next_result();
  const auto plans = all<RunStep>(on(ready(2)));
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_TRUE(plans[0].plan.snapshot);
  EXPECT_TRUE(on(StepDone{StepResult(old)}).empty());
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 10u);
}

TEST_F(CoreMembership, requests_end_by_cancel_and_deadline_while_no_rank_exists) {
  start();
  on(ready(1));
  Submitted s = request(1, 5, 10);
  s.deadline_ms = 20;
  on(s);
  on(request(2, 5, 10));
  on(lost(1));
  EXPECT_EQ(all<Finished>(on(Ticked{20})).size(), 1u);
  EXPECT_EQ(all<Finished>(on(cancelled(2))).size(), 1u);
  EXPECT_TRUE(on(ready(2)).empty());
  expect_baseline();
}

// A rank dies before every single event of a run with several requests under page pressure.
TEST_F(CoreMembership, a_loss_at_every_step_changes_no_stream) {
  for (int kill_at = 0; kill_at < 80; ++kill_at) {
    auto config = easy_config();
    config.kv.page_count = 22;
    start(config);
    on(ready(1));
    for (std::uint64_t id = 1; id <= 5; ++id) on(request(id, static_cast<std::uint32_t>(3 + 4 * id), 15));
    for (int i = 0; i < kill_at && harness().awaited() > 0; ++i) deliver();
    on(lost(1));
    on(ready(2));
    run_to_end();
    for (std::uint64_t id = 1; id <= 5; ++id) ASSERT_EQ(stream(id).tokens.size(), 15u) << "killed at " << kill_at;
    expect_baseline();
  }
}

TEST_F(CoreMembership, a_loss_after_every_step_still_ends) {
  start();
  on(request(1, 20, 12));
  on(request(2, 5, 12));
  std::uint64_t epoch = 0;
  while (harness().live() > 0 && epoch < 200) {
    on(ready(++epoch));
    // The longest recomputation takes four steps; then one more token is drawn before the next loss.
    for (int i = 0; i < 5 && harness().awaited() > 0; ++i) deliver();
    on(lost(epoch));
  }
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  EXPECT_EQ(stream(2).tokens.size(), 12u);
}

}  // namespace
}  // namespace althing::tests
