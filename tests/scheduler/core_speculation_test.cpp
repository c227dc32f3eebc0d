// Guesses change how many steps a request takes and nothing else: the judge of the harness holds every token against a lone run.
#include <gmock/gmock.h>

#include "scheduler/speculation.hpp"
#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using scheduler::PromptLookup;
using scheduler::SpeculationPace;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<TokenId> guess(const std::vector<TokenId>& tokens, std::uint32_t most) {
  PromptLookup lookup;
  lookup.read(tokens);
  return lookup.guess(tokens, most);
}

TEST(PromptLookup, guesses_what_came_behind_the_latest_place_that_ends_alike) {
  EXPECT_THAT(guess({1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 1, 2, 3}, 2), ElementsAre(7, 8));
  EXPECT_THAT(guess({1, 2, 3, 4, 5, 9, 2, 2, 3}, 2), IsEmpty()) << "two tokens alike are not enough";
  EXPECT_THAT(guess({1, 2, 3}, 4), IsEmpty());
  EXPECT_THAT(guess({}, 4), IsEmpty());
  EXPECT_THAT(guess({1, 2, 3, 4, 1, 2, 3}, 0), IsEmpty());
}

TEST(PromptLookup, a_period_goes_on_as_long_as_is_asked_for) {
  EXPECT_THAT(guess({5, 6, 5, 6, 5, 6}, 5), ElementsAre(5, 6, 5, 6, 5));
  EXPECT_THAT(guess({7, 7, 7, 7}, 3), ElementsAre(7, 7, 7));
}

TEST(PromptLookup, reads_on_where_it_was_and_grows) {
  PromptLookup lookup, fresh;
  std::vector<TokenId> tokens;
  std::uint64_t state = 3;
  for (int i = 0; i < 5000; ++i) {
    state = mix(state, 1);
    tokens.push_back(static_cast<TokenId>(state % 7));
    if (i % 3 == 0) lookup.read(tokens);
  }
  lookup.read(tokens);
  fresh.read(tokens);
  EXPECT_EQ(lookup.guess(tokens, 8), fresh.guess(tokens, 8));
  EXPECT_THAT(fresh.guess(tokens, 8), testing::SizeIs(8)) << "343 triples, 5000 tokens";
}

TEST(SpeculationPace, follows_what_holds) {
  SpeculationPace pace;
  EXPECT_EQ(pace.length(8), 2u);
  pace.verified(2, 2);
  EXPECT_EQ(pace.length(8), 4u);
  pace.verified(4, 4);
  EXPECT_EQ(pace.length(8), 8u);
  EXPECT_EQ(pace.length(3), 3u);
  pace.verified(8, 3);
  EXPECT_EQ(pace.length(8), 3u);
  pace.verified(3, 0);
  EXPECT_EQ(pace.length(8), 0u) << "it rests";
  int rest = 0;
  for (; pace.length(8) == 0; ++rest) pace.drawn();
  EXPECT_EQ(pace.length(8), 1u);
  pace.verified(1, 0);
  int longer = 0;
  for (; pace.length(8) == 0; ++longer) pace.drawn();
  EXPECT_GT(longer, rest) << "failures in a row";

  SpeculationPace drafts;
  drafts.verified(2, 0, true);
  EXPECT_EQ(drafts.length(8), 1u) << "once is nothing";
  drafts.verified(1, 0, true);
  EXPECT_EQ(drafts.length(8), 0u);
}

class CoreSpeculation : public CoreScript {
 protected:
  static scheduler::CoreConfig config(std::uint32_t most) {
    scheduler::CoreConfig c = easy_config();
    c.limits.rows_max = 8;
    c.limits.step_tokens_max = 64;
    c.limits.prefill_chunk_max = 8;
    c.limits.context_tokens_max = 256;
    c.limits.completion_tokens_max = 256;
    c.limits.speculation_tokens_max = most;
    return c;
  }
  std::uint64_t steps_of(std::uint32_t most, const std::vector<Submitted>& requests, std::uint32_t vocabulary, bool draft_model = false) {
    auto c = config(most);
    c.vocabulary = vocabulary;
    c.limits.draft_model = draft_model;
    start(c);
    on(ready(1));
    for (const Submitted& s : requests) on(s);
    run_to_end();
    for (const Submitted& s : requests) EXPECT_EQ(reason(s.request.value), FinishReason::length);
    expect_baseline();
    return harness().stats().steps_done;
  }
  static Submitted speaker(std::uint64_t id, std::uint32_t tokens, std::uint32_t vocabulary) {
    Submitted s = request(id, 3, tokens);
    for (TokenId& token : s.prompt) token %= vocabulary;
    return s;
  }
};

// Of one word everything is guessed right, as soon as there are three tokens to go by.
TEST_F(CoreSpeculation, what_repeats_itself_takes_fewer_steps) {
  const std::uint64_t without = steps_of(0, {speaker(1, 200, 1)}, 1), with = steps_of(4, {speaker(1, 200, 1)}, 1);
  EXPECT_LT(with * 3, without);
  EXPECT_EQ(harness().stats().guessed_right, harness().stats().guessed_tokens);
}

TEST_F(CoreSpeculation, wrong_guesses_cost_tokens_and_no_stream) {
  // Of four words triples come again often, and what follows is chance.
  std::vector<Submitted> requests;
  for (std::uint64_t id = 1; id <= 3; ++id) requests.push_back(speaker(id, 200, 4));
  const std::uint64_t without = steps_of(0, requests, 4), with = steps_of(4, requests, 4);
  const auto stats = harness().stats();
  EXPECT_GT(stats.guessed_tokens, stats.guessed_right);
  EXPECT_GT(stats.guessed_right, 0u);
  EXPECT_LT(with, without * 13 / 10) << "a guess that fails costs the overlap of two steps, and pauses grow";
}

// Without its position nobody can tell which draws are left, so a verdict with one missing is none.
TEST_F(CoreSpeculation, a_verdict_with_a_draw_missing_fails_the_request_and_tells_no_wrong_token) {
  for (const std::size_t missing : {0u, 1u}) {
    auto c = config(4);
    c.vocabulary = 5000;
    c.limits.draft_model = true;
    start(c);
    on(ready(1));
    on(speaker(1, 100, 5000));
    while (harness().live() > 0) {
      StepResult result = harness().next_result();
      if (result.drawn.size() > 1) {
        harness().expect_spoilt(RequestId{1});
        result.drawn.erase(result.drawn.begin() + static_cast<std::ptrdiff_t>(missing));
      }
      on(StepDone{result});
    }
    EXPECT_EQ(reason(1), FinishReason::error);
  }
}

TEST_F(CoreSpeculation, guesses_take_only_rows_that_nobody_wants) {
  auto c = config(4);
  c.vocabulary = 1;
  start(c);
  on(ready(1));
  for (std::uint64_t id = 1; id <= 8; ++id) on(speaker(id, 60, 1));
  run_to_end();
  for (const StepPlan& plan : harness().plans()) {
    std::uint32_t draws = 0;
    for (const RowWork& work : plan.work) draws += work.sample ? work.draws : 0;
    EXPECT_LE(draws, 8u);
  }
}

TEST_F(CoreSpeculation, the_length_asked_for_is_not_exceeded) {
  for (const std::uint32_t tokens : {1u, 2u, 3u, 4u, 5u, 7u, 30u}) {
    steps_of(6, {speaker(1, tokens, 1)}, 1);
    EXPECT_EQ(stream(1).tokens.size(), tokens);
  }
}

TEST_F(CoreSpeculation, rows_with_penalties_logprobs_or_a_trace_go_token_by_token) {
  std::vector<Submitted> requests{speaker(1, 40, 1), speaker(2, 40, 1), speaker(3, 40, 1)};
  requests[0].sampling.frequency_penalty = 0.5F;
  requests[1].sampling.logprobs = true;
  requests[2].trace_top_m = 1;
  steps_of(4, requests, 1);
  EXPECT_EQ(harness().stats().guessed_tokens, 0u);
}

TEST_F(CoreSpeculation, preemption_and_lost_ranks_between_guess_and_verdict_change_nothing) {
  auto c = config(4);
  c.vocabulary = 1;
  c.kv.page_count = 60;
  start(c);
  on(ready(1));
  for (std::uint64_t id = 1; id <= 3; ++id) on(speaker(id, 100, 1));
  for (std::uint64_t epoch = 1; harness().live() > 0 && epoch < 60; ++epoch) {
    for (int i = 0; i < 5 && harness().awaited() > 0; ++i) deliver();
    on(lost(epoch));
    on(ready(epoch + 1));
  }
  run_to_end();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(reason(id), FinishReason::length);
  expect_baseline();
}

// Nothing repeats itself among so many words: what is guessed, the draft model guesses, from the first draw on.
TEST_F(CoreSpeculation, drafts_take_fewer_steps_where_nothing_repeats_itself) {
  const std::vector<Submitted> requests{speaker(1, 200, 5000), speaker(2, 150, 5000)};
  const std::uint64_t without = steps_of(4, requests, 5000), with = steps_of(4, requests, 5000, true);
  const auto stats = harness().stats();
  EXPECT_LT(with * 4, without * 3);
  EXPECT_GT(stats.drafted_right, stats.drafted_tokens / 2);
  EXPECT_LT(stats.drafted_right, stats.drafted_tokens) << "the ranks' draft model is wrong now and then";
  EXPECT_EQ(stats.guessed_tokens, stats.drafted_tokens);
  EXPECT_EQ(stats.guessed_right, stats.drafted_right);
}

TEST_F(CoreSpeculation, nobody_drafts_for_rows_that_go_token_by_token) {
  std::vector<Submitted> requests{speaker(1, 40, 5000), speaker(2, 40, 5000), speaker(3, 40, 5000)};
  requests[0].sampling.presence_penalty = 0.5F;
  requests[1].sampling.logprobs = true;
  requests[2].trace_top_m = 1;
  steps_of(4, requests, 5000, true);
  for (const StepPlan& plan : harness().plans()) {
    for (const RowSetup& setup : plan.set) EXPECT_FALSE(setup.drafted);
    for (const RowWork& work : plan.work) EXPECT_EQ(work.guesses, 0u);
  }
}

TEST_F(CoreSpeculation, drafts_are_asked_for_as_far_as_the_next_step_can_verify_them) {
  std::vector<Submitted> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) requests.push_back(speaker(id, 60, 5000));
  steps_of(4, requests, 5000, true);
  std::uint32_t asked_most = 0;
  for (const StepPlan& plan : harness().plans()) {
    std::uint32_t asked = 0, draws = 0;
    for (const RowWork& work : plan.work) asked += work.guesses, draws += work.sample ? work.draws : 0;
    EXPECT_LE(asked, 8u) << "rows";
    EXPECT_LE(draws, 8u);
    asked_most = std::max(asked_most, asked);
  }
  EXPECT_GT(asked_most, 0u) << "when most have ended";
}

// A result without the guesses that were asked for, as from a rank whose draft model is lost, leaves a row as fast as without.
TEST_F(CoreSpeculation, drafts_that_do_not_come_are_not_waited_for_again_and_again) {
  const auto steps = [&](bool draft_model) {
    auto c = config(4);
    c.vocabulary = 5000;
    c.limits.draft_model = draft_model;
    start(c);
    on(ready(1));
    on(speaker(1, 200, 5000));
    std::uint64_t waits = 0;
    while (harness().live() > 0 && harness().awaited() > 0) {
      waits += harness().awaited() == 1 ? 1 : 0;
      StepResult result = harness().next_result();
      result.guesses.clear();
      on(StepDone{result});
    }
    EXPECT_EQ(reason(1), FinishReason::length);
    return waits;
  };
  EXPECT_LT(steps(true), steps(false) + 40) << "steps that nothing was planned behind";
}

TEST_F(CoreSpeculation, preemption_and_lost_ranks_between_draft_and_verdict_change_nothing) {
  auto c = config(4);
  c.vocabulary = 5000;
  c.kv.page_count = 60;
  c.limits.draft_model = true;
  start(c);
  on(ready(1));
  for (std::uint64_t id = 1; id <= 4; ++id) on(speaker(id, 100, 5000));
  for (std::uint64_t epoch = 1; harness().live() > 0 && epoch < 60; ++epoch) {
    for (int i = 0; i < 7 && harness().awaited() > 0; ++i) deliver();
    on(lost(epoch));
    on(ready(epoch + 1));
  }
  run_to_end();
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(reason(id), FinishReason::length);
  EXPECT_GT(harness().stats().drafted_right, 0u);
  expect_baseline();
}

// A prefill that is older takes tokens of the step before anybody guesses.
TEST_F(CoreSpeculation, guesses_and_prefills_share_the_tokens_of_a_step) {
  auto c = config(6);
  c.vocabulary = 1;
  c.limits.step_tokens_max = 40;
  c.limits.prefill_chunk_max = 40;
  start(c);
  on(ready(1));
  on(speaker(1, 120, 1));
  for (int i = 0; i < 10; ++i) deliver();
  for (std::uint64_t id = 2; id <= 5; ++id) {
    Submitted s = request(id, 200, 20);
    for (TokenId& token : s.prompt) token = 0;
    on(s);
    deliver();
  }
  run_to_end();  // the judge counts the tokens of every step
  EXPECT_GT(harness().stats().guessed_right, 0u);
}

}  // namespace
}  // namespace althing::tests
