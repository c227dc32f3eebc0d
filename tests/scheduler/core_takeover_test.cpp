// A core that takes over what another drew before it died: the request goes on behind those tokens, and none of them is reported again.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CoreTakeover = CoreScript;

TEST_F(CoreTakeover, every_split_of_a_completion_goes_on_to_the_same_end) {
  const Submitted whole = request(1, 5, 10);
  start();
  on(ready(1));
  on(whole);
  run_to_end();
  const std::vector<TokenId> lone = stream(1).tokens;
  ASSERT_EQ(lone.size(), 10u);
  for (std::size_t known = 0; known <= lone.size(); ++known) {
    start();
    Submitted again = whole;
    again.drawn.assign(lone.begin(), lone.begin() + static_cast<std::ptrdiff_t>(known));
    on(again);  // before there are ranks, as a core that has just started does
    on(ready(1));
    run_to_end();
    EXPECT_EQ(stream(1).tokens, lone) << known << " were known";
    EXPECT_EQ(reason(1), FinishReason::length);
    EXPECT_EQ(stream(1).finished->usage.completion_tokens, 10u);
    EXPECT_EQ(stream(1).finished->usage.preemptions, 0u);
    expect_baseline();
  }
}

TEST_F(CoreTakeover, the_known_tokens_are_computed_as_a_prompt_is) {
  start();
  on(ready(1));
  Submitted s = request(1, 3, 10);
  s.drawn = lone_run(s, easy_config().limits, easy_config().vocabulary).tokens;
  s.drawn.resize(4);
  const auto plans = all<RunStep>(on(s));
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans[0].plan.work.at(0).count, 7u);
  const auto drawn = all<TokensDrawn>(deliver());
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_EQ(drawn[0].first, 4u);
  run_to_end();
}

// The old core may have died between a stop token and the end that it means.
TEST_F(CoreTakeover, what_was_complete_ends_at_once_and_computes_nothing) {
  start();
  Submitted s = request(1, 3, 10);
  s.drawn = lone_run(s, easy_config().limits, easy_config().vocabulary).tokens;
  s.drawn.resize(4);
  s.sampling.ignore_stop = false;
  s.sampling.stop_tokens = {s.drawn.back()};
  const auto effects = on(s);
  ASSERT_EQ(effects.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Accepted>(effects[0]));
  EXPECT_EQ(reason(1), FinishReason::stop);
  EXPECT_EQ(stream(1).finished->usage.completion_tokens, 4u);
  expect_baseline();
}

TEST_F(CoreTakeover, tokens_that_cannot_be_are_refused) {
  start();
  Submitted s = request(1, 3, 2);
  s.drawn = {1000};
  EXPECT_EQ(refusal(s).field, "drawn");
  s.drawn = {1, 2, 3};
  EXPECT_EQ(refusal(s).field, "drawn");
}

}  // namespace
}  // namespace althing::tests
