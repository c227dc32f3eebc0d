// Constrained requests: nothing of theirs is drawn before it is ready, and nobody else waits for that.
#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CoreDraws = CoreScript;

Submitted constrained(std::uint64_t id, std::uint32_t prompt_tokens, std::uint32_t completion_tokens, std::uint32_t draws_ready) {
  Submitted s = request(id, prompt_tokens, completion_tokens);
  s.constrained = true;
  s.draws_ready = draws_ready;
  return s;
}

Event allow(std::uint64_t id, std::uint32_t until) { return DrawsReady{RequestId{id}, until}; }

TEST_F(CoreDraws, a_request_goes_as_far_as_its_draws_are_ready_and_no_further) {
  start();
  on(ready(1));
  on(constrained(1, 5, 10, 2));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 2u);
  EXPECT_EQ(harness().stats().running, 1u) << "it keeps its row";
  EXPECT_FALSE(all<RunStep>(on(allow(1, 3))).empty()) << "at once";
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 3u);
  on(allow(1, 2));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 3u) << "what was said before stays";
  on(allow(1, 100));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  EXPECT_TRUE(on(allow(1, 200)).empty()) << "it is over";
  expect_baseline();
}

TEST_F(CoreDraws, others_keep_two_steps_in_flight) {
  start();
  on(ready(1));
  on(constrained(1, 5, 10, 1));
  on(request(2, 5, 30));
  for (int i = 0; i < 6; ++i) deliver();
  EXPECT_EQ(harness().stats().steps_in_flight, 2u);
  EXPECT_EQ(stream(1).tokens.size(), 1u);
  EXPECT_GT(stream(2).tokens.size(), 3u);
  on(allow(1, 10));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 10u);
  EXPECT_EQ(stream(2).tokens.size(), 30u);
  expect_baseline();
}

TEST_F(CoreDraws, who_waits_for_a_decision_is_passed_by_and_takes_no_row) {
  auto config = easy_config();
  config.limits.rows_max = 1;
  start(config);
  on(ready(1));
  on(constrained(1, 5, 3, 0));
  on(request(2, 5, 3));
  run_to_end();
  EXPECT_EQ(reason(2), FinishReason::length);
  EXPECT_EQ(harness().stats().waiting, 1u);
  on(allow(1, 3));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreDraws, what_is_ready_stays_ready_over_a_lost_epoch) {
  start();
  on(ready(1));
  on(constrained(1, 5, 6, 1));
  on(allow(1, 3));
  deliver();
  on(lost(1));
  on(ready(2));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 3u);
  on(allow(1, 6));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreDraws, one_that_another_core_left_waits_until_its_frontend_has_read_its_tokens) {
  start();
  on(ready(1));
  Submitted s = constrained(1, 5, 6, 0);
  s.drawn = lone_run(s, easy_config().limits, easy_config().vocabulary).tokens;
  s.drawn.resize(4);
  on(s);
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 4u);
  on(allow(1, 6));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreDraws, each_choice_waits_for_itself) {
  start();
  on(ready(1));
  Submitted s = constrained(1, 5, 6, 1);
  s.choices = 3;
  on(s);
  run_to_end();
  on(allow(2, 6));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 1u);
  EXPECT_EQ(reason(2), FinishReason::length);
  EXPECT_EQ(stream(3).tokens.size(), 1u);
  on(allow(1, 6));
  on(allow(3, 6));
  run_to_end();
  expect_baseline();
}

}  // namespace
}  // namespace althing::tests
