// Requests that end because of what they say, and what ranks are told so that penalties come out the same after any interruption.
#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CoreStop = CoreScript;

Event stopped(std::uint64_t id, std::uint32_t completion_tokens) { return Stopped{RequestId{id}, completion_tokens}; }

TEST_F(CoreStop, ends_with_the_tokens_up_to_the_one_that_stopped_it) {
  start();
  on(ready(1));
  on(request(1, 5, 20));
  on(request(2, 5, 8));
  while (stream(1).tokens.size() < 6) deliver();
  const auto ends = all<Finished>(on(stopped(1, 4)));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].reason, FinishReason::stop);
  EXPECT_EQ(ends[0].usage, (Usage{5, 4, 0, 0, PrefixMiss::disabled}));
  EXPECT_EQ(ends[0].error.message, "");
  EXPECT_GT(harness().stats().steps_in_flight, 0u) << "that still compute it";
  run_to_end();
  EXPECT_EQ(stream(2).finished->usage.completion_tokens, 8u) << "others go on";
  expect_baseline();
}

TEST_F(CoreStop, what_waits_or_is_unknown_or_over_can_be_stopped_too) {
  start();
  on(request(1, 5, 20));
  EXPECT_EQ(all<Finished>(on(stopped(1, 0))).size(), 1u) << "before it ran";
  EXPECT_TRUE(on(stopped(1, 3)).empty()) << "again";
  EXPECT_TRUE(on(stopped(7, 3)).empty()) << "never heard of";
  on(ready(1));
  on(request(2, 5, 4));
  deliver();
  on(lost(1));
  const auto ends = all<Finished>(on(stopped(2, 1)));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].usage.completion_tokens, 1u);
  expect_baseline();
}

TEST_F(CoreStop, no_more_tokens_are_counted_than_were_drawn) {
  start();
  on(ready(1));
  on(request(1, 5, 20));
  deliver();
  EXPECT_EQ(all<Finished>(on(stopped(1, 1000)))[0].usage.completion_tokens, 1u);
}

TEST_F(CoreStop, tokens_tell_of_preemptions_so_far) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{0, 4, {0}}};
  config.kv.page_count = 8;
  start(config);
  on(ready(1));
  on(request(1, 4, 20));
  on(request(2, 4, 20));
  std::uint32_t most = 0;
  while (harness().awaited() > 0)
    for (const TokensDrawn& drawn : all<TokensDrawn>(deliver())) most = std::max(most, drawn.preemptions);
  EXPECT_EQ(most, stream(2).finished->usage.preemptions);
  EXPECT_GT(most, 0u) << "there was none to tell of";
}

// The judge's rank holds every setup against the truth; here it is that there is something to hold.
TEST_F(CoreStop, rows_with_penalties_come_with_all_their_tokens_also_when_they_come_back) {
  start();
  on(ready(1));
  Submitted s = request(1, 5, 12);
  s.sampling.presence_penalty = 0.5F;
  on(s);
  on(request(2, 5, 12));
  while (stream(1).tokens.size() < 4) deliver();
  on(lost(1));
  on(ready(2));
  run_to_end();
  std::vector<RowSetup> setups;
  for (const StepPlan& plan : harness().plans()) setups.insert(setups.end(), plan.set.begin(), plan.set.end());
  ASSERT_EQ(setups.size(), 4u);
  for (const RowSetup& setup : setups) EXPECT_EQ(setup.prompt_count, setup.request == RequestId{1} ? 5u : 0u);
  EXPECT_EQ(setups[0].tokens, s.prompt);
  std::vector<TokenId> known = s.prompt;
  known.insert(known.end(), stream(1).tokens.begin(), stream(1).tokens.begin() + 4);
  EXPECT_EQ(setups[2].tokens, known);
}

TEST_F(CoreStop, a_core_that_takes_over_tells_what_the_dead_one_had_drawn) {
  start();
  Submitted s = request(1, 3, 10);
  s.sampling.repetition_penalty = 1.2F;
  s.drawn = lone_run(s, easy_config().limits, easy_config().vocabulary).tokens;
  s.drawn.resize(4);
  on(ready(1));
  const auto plans = all<RunStep>(on(s));
  ASSERT_FALSE(plans.empty());
  const RowSetup& setup = plans[0].plan.set.at(0);
  EXPECT_EQ(setup.tokens.size(), 7u);
  EXPECT_EQ(setup.prompt_count, 3u);
  run_to_end();
}

}  // namespace
}  // namespace althing::tests
