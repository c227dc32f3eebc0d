// The checkers are checked: plans and effects that are right pass, and each planted bug is found. A judge that finds nothing wrong with a
// page handed out twice would make every other scheduler test worthless.
#include "tests/scheduler/rank_model.hpp"

#include <gmock/gmock.h>

#include <functional>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using testing::HasSubstr;

// Plans of a real run with two rows, windows that slide, and a change of requests.
std::vector<StepPlan> recorded_plans() {
  auto config = easy_config();
  config.limits.steps_in_flight_max = 1;
  CoreHarness harness(config);
  harness.on(request(1, 10, 12));
  harness.on(request(2, 6, 4));
  harness.on(request(3, 5, 6));
  harness.on(ready(1));
  harness.deliver();
  harness.on(request(4, 5, 3));
  harness.on(request(5, 5, 3));
  harness.deliver_all();
  EXPECT_EQ(harness.broken(), "");
  return harness.plans();
}

// Runs the plans with a change; what the model says, or nothing. `tell_done`: whether the core hears of each step before the next.
std::string verdict_on(const std::vector<StepPlan>& plans, bool tell_done = true) {
  auto config = easy_config();
  if (!tell_done) config.limits.steps_in_flight_max = 2;
  RankModel rank(config.limits, config.kv, config.vocabulary);
  for (const StepPlan& plan : plans) {
    StepResult result;
    if (auto broken = rank.apply(plan, result); !broken.empty()) return broken;
    if (tell_done) rank.done(plan.step);
  }
  return {};
}

std::string verdict_after(const std::function<void(std::vector<StepPlan>&)>& plant) {
  auto plans = recorded_plans();
  plant(plans);
  return verdict_on(plans);
}

StepPlan& first_with(std::vector<StepPlan>& plans, const std::function<bool(const StepPlan&)>& fits) {
  for (StepPlan& plan : plans)
    if (!plan.snapshot && fits(plan)) return plan;
  ADD_FAILURE() << "the recorded run has no such plan";
  return plans.front();
}

StepPlan& first_grant(std::vector<StepPlan>& plans) {
  return first_with(plans, [](const StepPlan& plan) { return !plan.pages.empty(); });
}

TEST(RankModel, an_honest_run_passes) { EXPECT_EQ(verdict_on(recorded_plans()), ""); }

TEST(RankModel, a_page_that_another_row_still_needs_is_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { plans[0].pages[2].pages[0] = plans[0].pages[0].pages[0]; }), HasSubstr("still needs it"));
}

// Two rows in two groups of their own use page 0 each: right in two pools, a collision in one.
TEST(RankModel, pages_are_told_apart_by_the_group_of_their_row) {
  const auto config = easy_config();
  StepPlan plan;
  plan.step = StepId{1}, plan.epoch = EpochId{1}, plan.snapshot = true;
  for (std::uint32_t row = 0; row < 2; ++row) {
    plan.set.push_back(RowSetup{RowIndex{row}, RequestId{row}, {}, DpGroup{row}});
    plan.pages.push_back(PageGrant{RowIndex{row}, 0, 0, {PageId{0}}});
    plan.pages.push_back(PageGrant{RowIndex{row}, 1, 0, {PageId{1}}});
    plan.work.push_back(RowWork{RowIndex{row}, 0, 2, {1, 2}, false});
  }
  const auto verdict = [&](std::uint32_t dp_groups) {
    RankModel rank(config.limits, config.kv, config.vocabulary, dp_groups);
    StepResult result;
    return rank.apply(plan, result);
  };
  EXPECT_EQ(verdict(2), "");
  EXPECT_THAT(verdict(1), HasSubstr("set in DP group 1"));
  plan.set[1].dp_group = DpGroup{0};
  EXPECT_THAT(verdict(2), HasSubstr("still needs it"));
}

TEST(RankModel, a_page_of_the_wrong_number_loses_the_keys_it_held) {
  EXPECT_THAT(verdict_after([](auto& plans) {
                auto& grants = plans[0].pages;
                grants[0].pages[1] = grants[0].pages[0];
              }),
              testing::AnyOf(HasSubstr("is gone"), HasSubstr("still needs it")));
}

TEST(RankModel, a_missing_page_is_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { first_grant(plans).pages.pop_back(); }), HasSubstr("has no page"));
}

TEST(RankModel, pages_that_leave_a_hole_in_the_table_are_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { ++first_grant(plans).pages[0].first; }), HasSubstr("not appended"));
}

TEST(RankModel, a_page_outside_the_pool_is_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { first_grant(plans).pages[0].pages[0] = PageId{200}; }), HasSubstr("does not exist"));
}

TEST(RankModel, a_page_granted_while_a_step_in_flight_touches_it_is_found) {
  auto plans = recorded_plans();
  // The first plan that clears a row takes over its pages: legal once the step before is done, not while it runs.
  EXPECT_EQ(verdict_on(plans), "");
  const auto config = easy_config();
  RankModel rank(config.limits, config.kv, config.vocabulary);
  StepPlan first, second;
  first.step = StepId{1};
  first.epoch = EpochId{1};
  first.snapshot = true;
  first.set = {{RowIndex{0}, RequestId{1}, {}}};
  first.pages = {{RowIndex{0}, 0, 0, {PageId{0}}}, {RowIndex{0}, 1, 0, {PageId{1}}}};
  first.work = {{RowIndex{0}, 0, 2, {1, 2}, true}};
  second.step = StepId{2};
  second.epoch = EpochId{1};
  second.base = StepId{1};
  second.cleared = {RowIndex{0}};
  second.set = {{RowIndex{0}, RequestId{2}, {}}};
  second.pages = first.pages;
  second.work = first.work;
  StepResult result;
  ASSERT_EQ(rank.apply(first, result), "");
  EXPECT_THAT(RankModel(rank).apply(second, result), HasSubstr("in flight touches it"));
  rank.done(StepId{1});
  EXPECT_EQ(rank.apply(second, result), "");
}

TEST(RankModel, wrong_bases_epochs_and_steps_are_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { plans[2].base = StepId{1}; }), HasSubstr("base"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[2].epoch = EpochId{2}; }), HasSubstr("without a snapshot"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[2].step = plans[1].step; }), HasSubstr("used again"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[2].snapshot = true; }), HasSubstr("has begun already"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans.erase(plans.begin() + 1); }), HasSubstr("base"));
}

TEST(RankModel, wrong_positions_tokens_and_rows_are_found) {
  EXPECT_THAT(verdict_after([](auto& plans) { ++plans[2].work[0].start; }), HasSubstr("are computed"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[0].work[0].tokens[0] = 1000; }), HasSubstr("out of range"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[0].work[0].tokens.clear(); }), HasSubstr("there is none"));
  EXPECT_THAT(verdict_after([](auto& plans) { plans[0].set.pop_back(); }), HasSubstr("empty row"));
  EXPECT_THAT(verdict_after([](auto& plans) { std::swap(plans[0].work[0], plans[0].work[1]); }), HasSubstr("ascend"));
  EXPECT_THAT(verdict_after([](auto& plans) {
                first_with(plans, [](const StepPlan& plan) { return !plan.cleared.empty() && !plan.set.empty(); }).cleared.clear();
              }),
              testing::AnyOf(HasSubstr("occupied"), HasSubstr("still needs it")));
}

// The judge of streams: a core whose answers are tampered with must be noticed. The spoilt result stands for a core that mixes tokens up.
TEST(CoreHarness, a_token_that_differs_from_a_lone_run_is_found) {
  CoreHarness harness(easy_config());
  harness.on(ready(1));
  harness.on(request(1, 3, 5));
  StepResult result = harness.next_result();
  result.drawn[0].token = (result.drawn[0].token + 1) % 1000;
  harness.on(StepDone{std::move(result)});
  EXPECT_THAT(harness.broken(), HasSubstr("differs from a lone run"));
}

TEST(CoreHarness, a_second_end_an_end_of_nobody_and_doubled_tokens_are_found) {
  const auto after_a_run = [](const Effect& planted) {
    CoreHarness harness(easy_config());
    harness.on(ready(1));
    harness.on(request(1, 3, 2));
    harness.deliver();
    EXPECT_EQ(harness.broken(), "");
    const Effect first = harness.effects().front();
    if (std::holds_alternative<Finished>(planted)) harness.deliver_all();
    EXPECT_EQ(harness.broken(), "");
    harness.judge(std::holds_alternative<Accepted>(planted) ? first : planted);
    return harness.broken();
  };
  EXPECT_THAT(after_a_run(Finished{RequestId{1}, FinishReason::length, Usage{3, 2, 0}, {}}), HasSubstr("finished twice"));
  EXPECT_THAT(after_a_run(Finished{RequestId{2}, FinishReason::length, Usage{3, 2, 0}, {}}), HasSubstr("never accepted"));
  EXPECT_THAT(after_a_run(TokensDrawn{RequestId{1}, 0, {5}}), HasSubstr("a gap or come twice"));
  EXPECT_THAT(after_a_run(TokensDrawn{RequestId{1}, 2, {5}}), HasSubstr("a gap or come twice"));
  EXPECT_THAT(after_a_run(Accepted{}), HasSubstr("a gap or come twice")) << "the last report once more";
}

}  // namespace
}  // namespace althing::tests
