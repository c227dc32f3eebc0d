// Several completions of one prompt: each is drawn as it would be alone, all of them get in or none does, and each ends by itself.
#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using testing::HasSubstr;
using CoreChoices = CoreScript;

Submitted several(std::uint64_t id, std::uint32_t choices, std::uint32_t completion_tokens = 12) {
  Submitted s = request(id, 5, completion_tokens);
  s.choices = choices;
  return s;
}

// The judge holds each choice against its lone run, for every event of every test here.
TEST_F(CoreChoices, each_is_what_it_is_alone_and_they_differ) {
  start();
  on(ready(1));
  const auto effects = on(several(1, 3));
  EXPECT_EQ(all<Accepted>(effects), (std::vector<Accepted>{{RequestId{1}}}));
  run_to_end();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(reason(id), FinishReason::length);
  EXPECT_NE(stream(1).tokens, stream(2).tokens);
  EXPECT_NE(stream(2).tokens, stream(3).tokens);
  const auto first = stream(1).tokens, third = stream(3).tokens;

  start();
  on(ready(1));
  on(several(1, 1));
  Submitted alone = several(9, 1);
  alone.sampling = several(1, 1).sampling;
  alone.sampling.choice = 2;
  on(alone);
  run_to_end();
  EXPECT_EQ(stream(1).tokens, first) << "choice 0 is the request of one";
  EXPECT_EQ(stream(9).tokens, third) << "choice 2 is the one that was asked for alone";
}

TEST_F(CoreChoices, preemption_and_lost_ranks_change_none_of_them) {
  auto config = easy_config();
  config.kv.page_count = 20;
  start(config);
  on(ready(1));
  on(several(1, 6, 40));
  for (int i = 0; i < 10; ++i) deliver();
  on(lost(1));
  on(ready(2));
  run_to_end();
  std::uint32_t preemptions = 0;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(reason(id), FinishReason::length);
    preemptions += stream(id).finished->usage.preemptions;
  }
  EXPECT_GT(preemptions, 0u) << "they did not fit together";
  expect_baseline();
}

TEST_F(CoreChoices, all_get_in_or_none_does) {
  start();
  on(ready(1));
  on(several(1, 6));
  const Error error = refusal(several(10, 3));
  EXPECT_EQ(error.code, ErrorCode::busy);
  for (const char* number : {"6", "3", "8"}) EXPECT_THAT(error.message, HasSubstr(number));
  EXPECT_EQ(harness().live(), 6u) << "no half of a request";
  EXPECT_EQ(all<Accepted>(on(several(10, 2))).size(), 1u) << "the control: as many as there is room for";
  run_to_end();
  expect_baseline();
}

TEST_F(CoreChoices, numbers_that_cannot_be_are_refused) {
  start();
  EXPECT_EQ(refusal(several(1, 0)).field, "n");
  const Error many = refusal(several(1, 17));
  EXPECT_EQ(many.field, "n");
  EXPECT_THAT(many.message, HasSubstr("17"));
  EXPECT_THAT(many.message, HasSubstr("16"));
  const Error never = refusal(several(1, 9));
  EXPECT_EQ(never.code, ErrorCode::too_large) << "9 sequences will never fit the 8 that there may be";
  Submitted known = several(1, 2);
  known.drawn = {1};
  EXPECT_EQ(refusal(known).field, "drawn");
  EXPECT_EQ(refusal(several(std::numeric_limits<std::uint64_t>::max(), 2)).field, "request");
  EXPECT_EQ(harness().live(), 0u);
}

TEST_F(CoreChoices, an_id_in_use_refuses_the_whole_range) {
  start();
  on(ready(1));
  on(request(3, 5, 12));
  EXPECT_EQ(refusal(several(1, 3)).field, "request");
  EXPECT_EQ(all<Accepted>(on(several(1, 2))).size(), 1u);
  EXPECT_EQ(all<Accepted>(on(several(4, 2))).size(), 1u);
  run_to_end();
}

TEST_F(CoreChoices, one_that_is_cancelled_leaves_the_others) {
  start();
  on(ready(1));
  on(several(1, 3));
  deliver();
  on(cancelled(2));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  EXPECT_EQ(reason(2), FinishReason::cancelled);
  EXPECT_EQ(reason(3), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreChoices, one_that_meets_nan_ends_alone) {
  // A seed of the pseudo model in which some choices meet NaN and some do not.
  Submitted s = several(1, 4, 20);
  for (s.sampling.seed = 7;; s.sampling.seed += 8) {
    int failing = 0;
    for (std::uint32_t choice = 0; choice < 4; ++choice) {
      Submitted alone = s;
      alone.sampling.choice = choice;
      failing += lone_run(alone, easy_config().limits, easy_config().vocabulary).reason == FinishReason::error;
    }
    if (failing > 0 && failing < 4) break;
  }
  start();
  on(ready(1));
  on(s);
  run_to_end();
  int errors = 0, whole = 0;
  for (std::uint64_t id = 1; id <= 4; ++id) (reason(id) == FinishReason::error ? errors : whole) += 1;
  EXPECT_GT(errors, 0);
  EXPECT_GT(whole, 0);
  expect_baseline();
}

TEST_F(CoreChoices, a_deadline_ends_all_of_them) {
  start();
  on(ready(1));
  Submitted s = several(1, 3);
  s.deadline_ms = 50;
  on(s);
  deliver();
  EXPECT_EQ(all<Finished>(on(Ticked{50})).size(), 3u);
  run_to_end();
  expect_baseline();
}

}  // namespace
}  // namespace althing::tests
