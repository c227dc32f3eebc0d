// Memberships of another shape: fewer or more DP groups and pages than before. Streams go on in whatever pools there are; what cannot go on ends with
// both numbers; quarantine, rows and page tables follow.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

class CoreReshape : public CoreScript {
 protected:
  static KvShape shape(std::uint32_t dp_groups, std::uint32_t page_count) {
    KvShape shape{dp_groups, easy_config().kv};
    shape.layout.page_count = page_count;
    return shape;
  }
  Event ready_as(std::uint64_t epoch, const KvShape& shape) { return RanksReady{EpochId{epoch}, shape}; }
};

TEST_F(CoreReshape, streams_of_a_lost_group_go_on_in_the_other_and_return) {
  auto config = easy_config();
  config.dp_groups = 2;
  start(config);
  on(ready(1));
  for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, 5, 20));
  for (int i = 0; i < 6; ++i) deliver();
  EXPECT_EQ(harness().stats().pages_total, 400u);
  on(lost(1));
  const auto plans = all<RunStep>(on(ready_as(2, shape(1, 200))));
  ASSERT_FALSE(plans.empty());
  for (const RowSetup& setup : plans[0].plan.set) EXPECT_EQ(setup.dp_group, DpGroup{0});
  EXPECT_EQ(harness().stats().pages_total, 200u);
  for (int i = 0; i < 4; ++i) deliver();
  // More ranks again, without a loss between: steps in flight are void all the same.
  on(ready_as(3, shape(2, 200)));
  EXPECT_EQ(harness().stats().pages_total, 400u);
  run_to_end();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(stream(id).tokens.size(), 20u);
  expect_baseline();
}

TEST_F(CoreReshape, what_no_smaller_pool_can_hold_ends_with_both_numbers_and_others_live) {
  start();
  on(ready(1));
  const std::uint32_t before = harness().core().request_tokens_max();
  on(request(1, 30, 30));
  on(request(2, 4, 6));
  on(lost(1));
  const auto finished = all<Finished>(on(ready_as(2, shape(1, 8))));
  const std::uint32_t now = harness().core().request_tokens_max();
  ASSERT_LT(now, 60u);
  ASSERT_GT(now, 10u);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].request, RequestId{1});
  EXPECT_EQ(finished[0].error.code, ErrorCode::too_large);
  for (const std::uint32_t number : {before, now, 60u})
    EXPECT_THAT(finished[0].error.message, testing::HasSubstr(std::to_string(number))) << finished[0].error.message;
  EXPECT_EQ(refusal(request(3, 30, 30)).code, ErrorCode::too_large) << "admission goes by the pools that there are";
  run_to_end();
  EXPECT_EQ(stream(2).tokens.size(), 6u);
  on(ready_as(3, shape(1, 200)));
  on(request(4, 30, 30));
  run_to_end();
  EXPECT_EQ(stream(4).tokens.size(), 30u);
  expect_baseline();
}

// Without the judge, whose model knows of no NaN where the test makes one up.
TEST_F(CoreReshape, the_same_shape_keeps_its_quarantine_and_another_has_none) {
  for (const bool same : {true, false}) {
    auto core = std::move(*scheduler::Core::create(easy_config()));
    const auto on_core = [&](const Event& event) {
      const auto effects = core->on(event);
      EXPECT_EQ(core->check_invariants(), "");
      return all<RunStep>({effects.begin(), effects.end()});
    };
    on_core(ready(1));
    const auto first = on_core(request(1, 5, 20));
    ASSERT_FALSE(first.empty());
    on_core(StepDone{StepResult{first[0].plan.step, EpochId{1}, {{RowIndex{0}, RequestId{1}, 5, true}}}});
    on_core(lost(1));
    EXPECT_GT(core->stats().pages_used, 0u) << "in quarantine";
    const auto plans = on_core(ready_as(2, same ? KvShape{1, easy_config().kv} : shape(2, 100)));
    ASSERT_EQ(plans.empty(), !same) << "a scrub of pages that are gone, or none of pages that are there";
    if (!same) {
      EXPECT_EQ(core->stats().pages_used, 0u);
      continue;
    }
    EXPECT_FALSE(plans[0].plan.scrub.empty());
    on_core(StepDone{StepResult{plans[0].plan.step, EpochId{2}, {}}});
    EXPECT_EQ(core->stats().pages_used, 0u);
  }
}

TEST_F(CoreReshape, a_shape_in_which_nothing_could_be_planned_is_no_membership) {
  auto core = scheduler::Core::create(easy_config());
  ASSERT_TRUE(core.ok());
  (*core)->on(ready(1));
  (*core)->on(request(1, 5, 6));
  EXPECT_TRUE((*core)->on(ready_as(2, shape(1, 1))).empty());
  EXPECT_FALSE((*core)->stats().ready);
  EXPECT_EQ((*core)->check_invariants(), "");
  EXPECT_FALSE((*core)->on(ready_as(3, shape(1, 200))).empty());
  EXPECT_TRUE((*core)->stats().ready);
}

}  // namespace
}  // namespace althing::tests
