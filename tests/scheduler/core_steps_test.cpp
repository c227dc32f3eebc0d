// How work is cut into steps: chunks, decodes, two steps in flight, and how requests end.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CoreSteps = CoreScript;

const RowWork& only_work(const StepPlan& plan) {
  EXPECT_EQ(plan.work.size(), 1u);
  return plan.work.at(0);
}

TEST_F(CoreSteps, nothing_is_planned_while_there_is_no_work) {
  start();
  EXPECT_TRUE(on(ready(1)).empty());
  EXPECT_TRUE(on(Ticked{5}).empty());
  EXPECT_TRUE(on(cancelled(77)).empty());
}

TEST_F(CoreSteps, a_prompt_is_computed_in_chunks_and_sampled_exactly_at_its_end) {
  start();
  on(ready(1));
  on(request(1, 19, 2));
  deliver();
  run_to_end();
  const auto& plans = harness().plans();
  ASSERT_EQ(plans.size(), 4u);
  const std::uint32_t starts[] = {0, 8, 16, 19}, counts[] = {8, 8, 3, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    const RowWork& work = only_work(plans[i]);
    EXPECT_EQ(work.start, starts[i]);
    EXPECT_EQ(work.count, counts[i]);
    EXPECT_EQ(work.sample, i >= 2);
  }
  EXPECT_TRUE(plans[0].snapshot);
  EXPECT_FALSE(plans[1].snapshot);
  EXPECT_EQ(plans[1].base, plans[0].step);
  EXPECT_EQ(plans[0].set.size(), 1u);
  EXPECT_TRUE(plans[1].set.empty());
}

TEST_F(CoreSteps, the_next_step_is_planned_while_one_runs_and_takes_the_token_from_the_device) {
  start();
  on(ready(1));
  const auto plans = all<RunStep>(on(request(1, 3, 4)));
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(only_work(plans[0].plan).tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(only_work(plans[1].plan).tokens.empty());
  EXPECT_EQ(only_work(plans[1].plan).start, 3u);
  EXPECT_EQ(harness().stats().steps_in_flight, 2u);
}

TEST_F(CoreSteps, with_one_step_in_flight_the_host_names_every_token) {
  auto config = easy_config();
  config.limits.steps_in_flight_max = 1;
  start(config);
  on(ready(1));
  on(request(1, 3, 4));
  deliver();
  ASSERT_EQ(harness().plans().size(), 2u);
  EXPECT_EQ(only_work(harness().plans()[1]).tokens, stream(1).tokens);
  run_to_end();
  expect_baseline();
}

TEST_F(CoreSteps, the_last_token_is_known_in_advance_and_never_planned_past) {
  start();
  on(ready(1));
  EXPECT_EQ(all<RunStep>(on(request(1, 3, 1))).size(), 1u);
  const auto effects = deliver();
  ASSERT_EQ(effects.size(), 2u);
  EXPECT_EQ(std::get<TokensDrawn>(effects[0]).first, 0u);
  EXPECT_EQ(std::get<Finished>(effects[1]).reason, FinishReason::length);
  expect_baseline();
}

TEST_F(CoreSteps, decodes_go_first_and_prefills_share_the_rest) {
  start();  // 16 tokens a step, 8 a chunk
  on(ready(1));
  on(request(1, 3, 30));
  deliver();
  on(request(2, 20, 4));
  on(request(3, 20, 4));
  on(request(4, 20, 4));
  deliver();
  const StepPlan& plan = harness().plans().back();
  ASSERT_EQ(plan.work.size(), 3u);
  EXPECT_EQ(plan.work[0].count, 1u);
  EXPECT_EQ(plan.work[1].count, 8u);
  EXPECT_EQ(plan.work[2].count, 7u);
  run_to_end();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(reason(id), FinishReason::length);
}

TEST_F(CoreSteps, rows_are_stable_and_the_lowest_free_one_is_taken) {
  start();
  on(ready(1));
  for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, 2, id == 2 ? 3 : 20));
  on(request(5, 2, 3));
  while (!stream(2).finished) deliver();
  deliver();
  std::map<RequestId, RowIndex> rows;
  for (const StepPlan& plan : harness().plans())
    for (const RowSetup& setup : plan.set) EXPECT_TRUE(rows.emplace(setup.request, setup.row).second) << "set twice";
  EXPECT_EQ(rows.at(RequestId{1}), RowIndex{0});
  EXPECT_EQ(rows.at(RequestId{5}), rows.at(RequestId{2}));
  run_to_end();
}

TEST_F(CoreSteps, a_stop_token_is_reported_and_ends_the_request) {
  start();
  Submitted s = request(1, 3, 30);
  const auto free_run = lone_run(s, easy_config().limits, 1000);
  s.sampling.ignore_stop = false;
  s.sampling.stop_tokens = {free_run.tokens[4]};
  on(ready(1));
  on(s);
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::stop);
  EXPECT_EQ(stream(1).tokens.back(), free_run.tokens[4]);
  EXPECT_EQ(stream(1).finished->usage.completion_tokens, stream(1).tokens.size());
  EXPECT_EQ(stream(1).finished->error, Error{});
  expect_baseline();
}

TEST_F(CoreSteps, ignore_stop_runs_to_the_length) {
  start();
  Submitted s = request(1, 3, 12);
  s.sampling.stop_tokens = {lone_run(s, easy_config().limits, 1000).tokens[2]};
  on(ready(1));
  on(s);
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  EXPECT_EQ(stream(1).tokens.size(), 12u);
}

TEST_F(CoreSteps, a_row_that_stopped_is_dropped_from_the_step_already_planned_and_its_pages_wait_for_it) {
  start();
  Submitted s = request(1, 3, 30);
  s.sampling.stop_tokens = {lone_run(s, easy_config().limits, 1000).tokens[0]};
  s.sampling.ignore_stop = false;
  on(ready(1));
  on(s);
  deliver();
  EXPECT_EQ(reason(1), FinishReason::stop);
  EXPECT_EQ(harness().stats().steps_in_flight, 1u);
  EXPECT_GT(harness().stats().pages_used, 0u) << "the step in flight still writes them";
  EXPECT_TRUE(deliver().empty()) << "its draw is nobody's";
  expect_baseline();
}

TEST_F(CoreSteps, nonfinite_logits_end_the_request_and_no_other) {
  start();
  on(ready(1));
  on(request(1, 3, 4));
  on(request(2, 3, 4));
  StepResult result = harness().next_result();
  result.drawn.at(0).nonfinite = true;
  // The judge knows of no NaN here, so the core's own words are read.
  auto core = std::move(*scheduler::Core::create(easy_config()));
  core->on(ready(1));
  core->on(request(1, 3, 4));
  const auto effects = core->on(StepDone{std::move(result)});
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(std::get<Finished>(effects[0]).reason, FinishReason::error);
  EXPECT_EQ(std::get<Finished>(effects[0]).error.code, ErrorCode::nonfinite);
  EXPECT_EQ(core->check_invariants(), "");
  run_to_end();
}

TEST_F(CoreSteps, a_cancelled_request_ends_with_the_given_error_whether_running_or_waiting) {
  start();
  for (std::uint64_t id = 1; id <= 5; ++id) on(request(id, 2, 20));
  on(ready(1));
  EXPECT_EQ(harness().stats().waiting, 1u);
  for (const std::uint64_t id : {5u, 2u}) {
    const auto ends = all<Finished>(on(cancelled(id)));
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].reason, FinishReason::cancelled);
    EXPECT_EQ(ends[0].error.message, "the client asked");
    EXPECT_TRUE(all<Finished>(on(cancelled(id))).empty());
  }
  run_to_end();
  expect_baseline();
}

TEST_F(CoreSteps, a_deadline_ends_running_and_waiting_requests) {
  start();
  on(ready(1));
  for (std::uint64_t id = 1; id <= 5; ++id) {
    Submitted s = request(id, 2, 20);
    s.deadline_ms = id == 1 || id == 5 ? 50 : 0;
    on(s);
  }
  EXPECT_TRUE(all<Finished>(on(Ticked{49})).empty());
  const auto ends = all<Finished>(on(Ticked{50}));
  ASSERT_EQ(ends.size(), 2u);
  for (const Finished& end : ends) {
    EXPECT_EQ(end.reason, FinishReason::error);
    EXPECT_EQ(end.error.code, ErrorCode::deadline);
  }
  run_to_end();
  EXPECT_EQ(reason(3), FinishReason::length);
}

TEST_F(CoreSteps, a_clock_that_goes_back_changes_nothing) {
  start();
  on(Ticked{100});
  on(Ticked{10});
  Submitted s = request(1, 2, 2);
  s.deadline_ms = 60;
  EXPECT_EQ(refusal(s).code, ErrorCode::deadline);
}

TEST_F(CoreSteps, answers_of_another_step_or_epoch_or_a_second_answer_are_ignored) {
  start();
  on(ready(4));
  on(request(1, 3, 9));
  const StepResult good = harness().next_result();
  StepResult bad = good;
  bad.step = StepId{good.step.value + 1};
  EXPECT_TRUE(on(StepDone{StepResult(bad)}).empty()) << "out of order";
  bad = good;
  bad.epoch = EpochId{3};
  EXPECT_TRUE(on(StepDone{StepResult(bad)}).empty());
  EXPECT_EQ(all<TokensDrawn>(deliver()).size(), 1u);
  EXPECT_TRUE(on(StepDone{StepResult(good)}).empty()) << "a second answer";
  run_to_end();
}

TEST_F(CoreSteps, an_answer_that_makes_no_sense_fails_the_requests_it_leaves_without_a_token) {
  start();
  on(ready(1));
  on(request(1, 3, 9));
  deliver();
  on(request(2, 3, 9));
  deliver();
  deliver();
  StepResult result = harness().next_result();
  ASSERT_EQ(result.drawn.size(), 2u);
  harness().expect_spoilt(RequestId{1});
  result.drawn[0].token = 1000;
  result.drawn.push_back({RowIndex{4'000'000'000}, RequestId{99}, 5, false});
  const auto ends = all<Finished>(on(StepDone{std::move(result)}));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].request, RequestId{1});
  EXPECT_EQ(ends[0].error.code, ErrorCode::internal);
  EXPECT_THAT(ends[0].error.message, testing::AllOf(testing::HasSubstr("1000"), testing::HasSubstr("999")));
  run_to_end();
  EXPECT_EQ(reason(2), FinishReason::length);
  expect_baseline();
}

}  // namespace
}  // namespace althing::tests
