// Requests that begin alike: how far they need not be computed, and what is told of it. Blocks of 4 tokens, and a window of 6.
#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

class CorePrefix : public CoreScript {
 protected:
  CorePrefix() { begin(easy_config()); }

  void begin(scheduler::CoreConfig config) {
    config.share_prefixes = true;
    start(config);
    on(ready(1));
    next_ = 1;
  }
  // Runs to its end, alone. Returns how it was told.
  Usage ask(std::vector<TokenId> prompt, std::uint32_t completion_tokens = 2, std::vector<std::uint32_t> boundaries = {}, PageKey salt = {}) {
    Submitted s = request(next_++, 1, completion_tokens);
    s.prompt = std::move(prompt);
    s.boundaries = std::move(boundaries);
    s.salt = salt;
    on(s);
    run_to_end();
    const auto& end = stream(next_ - 1).finished;
    EXPECT_TRUE(end.has_value());
    return end ? end->usage : Usage{};
  }
  std::vector<TokenId> all_of_last() const {
    const auto& last = stream(next_ - 1);
    std::vector<TokenId> tokens = last.submitted.prompt;
    tokens.insert(tokens.end(), last.tokens.begin(), last.tokens.end());
    return tokens;
  }
  static std::vector<TokenId> text(std::uint32_t count, TokenId first = 1) {
    std::vector<TokenId> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  std::uint64_t next_ = 1;
};

TEST_F(CorePrefix, goes_on_behind_the_last_whole_block_and_computes_its_last_token) {
  EXPECT_EQ(ask(text(16)).cached_tokens, 0u);
  const Usage again = ask(text(16));
  EXPECT_EQ(again.cached_tokens, 12u) << "the last token's logits are needed, and a block is never half one's own";
  EXPECT_EQ(again.miss, PrefixMiss::none);
  EXPECT_EQ(ask(text(17)).cached_tokens, 16u);
  EXPECT_EQ(harness().stats().prefix_hit_tokens, 28u);
  EXPECT_EQ(harness().stats().prefix_miss_tokens, 16u + 4u + 1u);
}

TEST_F(CorePrefix, first_step_computes_the_new_tail_alone) {
  ask(text(30));
  const std::size_t before = harness().plans().size();
  ask(text(33));
  const StepPlan& first = harness().plans().at(before);
  ASSERT_EQ(first.work.size(), 1u);
  EXPECT_EQ(first.work[0].start, 28u);
  std::size_t kept = 0;
  for (const PageGrant& grant : first.pages) kept += grant.kept ? grant.pages.size() : 0;
  EXPECT_EQ(kept, 7u + 2u) << "of full attention all, of the window of 6 what position 28 reads";
}

TEST_F(CorePrefix, agent_of_20_turns_computes_new_tails_only) {
  auto config = easy_config();
  config.limits.context_tokens_max = 2048;
  config.limits.completion_tokens_max = 64;
  config.kv.page_count = 2000;
  begin(config);
  std::vector<TokenId> conversation = text(60);
  std::uint64_t could = 0, had = 0;
  for (std::uint32_t turn = 0; turn < 20; ++turn) {
    const std::uint64_t known = turn == 0 ? 0 : conversation.size();
    if (turn > 0) {
      const auto tool = text(23, 500 + turn);
      conversation.insert(conversation.end(), tool.begin(), tool.end());
    }
    const Usage usage = ask(conversation, 17, {60});
    had += usage.cached_tokens;
    could += known;
    EXPECT_GE(usage.cached_tokens + 5, known) << "turn " << turn;
    conversation = all_of_last();
  }
  EXPECT_GE(had * 100, could * 95);
}

TEST_F(CorePrefix, edit_in_the_last_page_hits_up_to_two_pages_before_the_end) {
  for (std::uint32_t length = 20; length < 44; ++length) {
    begin(easy_config());
    ask(text(length), 1);
    for (std::uint32_t edited = length - 4; edited < length; ++edited) {
      auto prompt = text(length);
      prompt[edited] = 999;
      prompt.push_back(998);
      EXPECT_GE(ask(prompt, 1).cached_tokens + 8, length) << "of " << length << " tokens, " << edited << " is another";
    }
  }
}

// A pool that has no room for pages which no likely position needs.
TEST_F(CorePrefix, edit_elsewhere_hits_up_to_the_last_boundary_that_was_kept) {
  auto config = easy_config();
  config.kv.page_count = 23;
  begin(config);
  ask(text(60), 1, {24});
  EXPECT_EQ(harness().stats().pages_used, 0u);
  auto prompt = text(60);
  prompt[38] = 999;
  const Usage usage = ask(prompt, 1, {24});
  EXPECT_EQ(usage.cached_tokens, 24u);
  EXPECT_EQ(usage.miss, PrefixMiss::boundary);
}

TEST_F(CorePrefix, nothing_is_shared_between_salts) {
  ask(text(16), 2, {}, {1, 1});
  const Usage other = ask(text(16), 2, {}, {1, 2});
  EXPECT_EQ(other.cached_tokens, 0u);
  EXPECT_EQ(other.miss, PrefixMiss::tenant);
  EXPECT_EQ(ask(text(16), 2, {}, {1, 1}).cached_tokens, 12u);
}

TEST_F(CorePrefix, every_miss_has_a_reason) {
  EXPECT_EQ(ask(text(16)).miss, PrefixMiss::cold);
  EXPECT_EQ(ask(text(4)).miss, PrefixMiss::short_prompt);
  EXPECT_EQ(ask(text(40)).miss, PrefixMiss::cold) << "what is new is cold too";
  Submitted traced = request(next_++, 16, 2);
  traced.trace_top_m = 1;
  on(traced);
  run_to_end();
  EXPECT_EQ(stream(next_ - 1).finished->usage.miss, PrefixMiss::traced);
  EXPECT_EQ(stream(next_ - 1).finished->usage.cached_tokens, 0u);
  auto config = easy_config();
  config.kv.page_count = 30;
  begin(config);
  ask(text(40, 100));
  ask(text(60, 300), 1);
  EXPECT_EQ(ask(text(40, 100)).miss, PrefixMiss::evicted);
  EXPECT_GT(harness().stats().prefix_pages_evicted, 0u);
}

TEST_F(CorePrefix, cached_pages_are_room_for_whoever_needs_it) {
  auto config = easy_config();
  config.kv.page_count = 20;
  begin(config);
  for (TokenId i = 0; i < 12; ++i) ask(text(40, 1 + i * 50), 4);
  EXPECT_EQ(harness().stats().preemptions, 0u);
  EXPECT_EQ(harness().stats().pages_used, 0u);
  EXPECT_GT(harness().stats().pages_cached, 0u);
  EXPECT_LE(harness().stats().pages_cached, 20u);
}

TEST_F(CorePrefix, a_lost_epoch_leaves_nothing_to_go_on_from) {
  ask(text(16));
  on(lost(1));
  EXPECT_EQ(harness().stats().pages_cached, 0u);
  on(ready(2));
  EXPECT_EQ(ask(text(16)).cached_tokens, 0u);
}

TEST_F(CorePrefix, choices_go_on_from_the_first_ones_prompt) {
  Submitted s = request(1, 32, 3);
  s.choices = 3;
  next_ = 5;
  on(s);
  run_to_end();
  EXPECT_EQ(stream(1).finished->usage.cached_tokens, 0u);
  EXPECT_EQ(stream(2).finished->usage.cached_tokens, 28u);
  EXPECT_EQ(stream(3).finished->usage.cached_tokens, 28u);
  std::uint64_t computed = 0;
  for (const StepPlan& plan : harness().plans())
    for (const RowWork& work : plan.work) computed += work.count;
  EXPECT_EQ(computed, 32u + 2 * 4u + 3 * 2u) << "the prompt once, the last block of it for each other choice, and the draws but the last";
}

TEST_F(CorePrefix, choices_do_not_wait_for_one_that_was_cancelled) {
  Submitted s = request(1, 32, 3);
  s.choices = 2;
  on(s);
  on(cancelled(1));
  run_to_end();
  EXPECT_EQ(reason(2), FinishReason::length);
}

TEST_F(CorePrefix, nobody_goes_on_from_what_has_no_draw_behind_it_yet) {
  on(request(1, 24, 2));
  deliver();  // 8 tokens; whether they are finite nobody can know before all 24 are there
  on(request(2, 24, 2));
  run_to_end();
  EXPECT_EQ(stream(2).finished->usage.cached_tokens, 0u);
  on(request(3, 24, 2));
  run_to_end();
  EXPECT_EQ(stream(3).finished->usage.cached_tokens, 20u);
}

// Its draws are NaN from the seed on; the model rank finds out if anybody is given what it wrote.
TEST_F(CorePrefix, pages_of_a_request_with_nan_are_gone_on_from_by_nobody) {
  ask(text(16));
  bool failed = false;
  for (std::uint64_t seed = 7; seed < 200 && !failed; seed += 8) {
    Submitted s = request(next_++, 20, 20);
    s.sampling.seed = seed;
    on(s);
    run_to_end();
    failed = stream(next_ - 1).finished->error.code == ErrorCode::nonfinite;
  }
  ASSERT_TRUE(failed);
  EXPECT_EQ(ask(text(16)).cached_tokens, 0u) << "also what it had from others: it may be what is wrong";
  EXPECT_EQ(ask(text(16)).cached_tokens, 12u);
}

TEST_F(CorePrefix, two_that_run_share_pages_and_both_give_them_back) {
  ask(text(24));
  on(request(10, 26, 8));
  on(request(11, 28, 12));
  deliver();
  // 6 + 2 pages that both have; one more of each group for each.
  EXPECT_LT(harness().stats().pages_used, 2u * (7u + 2u));
  run_to_end();
  EXPECT_EQ(stream(10).finished->usage.cached_tokens, 24u);
  EXPECT_EQ(stream(11).finished->usage.cached_tokens, 24u);
  EXPECT_EQ(harness().stats().pages_used, 0u);
}

TEST_F(CorePrefix, without_sharing_nothing_is_kept) {
  start(easy_config());
  on(ready(1));
  next_ = 1;
  ask(text(16));
  EXPECT_EQ(harness().stats().pages_cached, 0u);
  const Usage again = ask(text(16));
  EXPECT_EQ(again.cached_tokens, 0u);
  EXPECT_EQ(again.miss, PrefixMiss::disabled);
}

}  // namespace
}  // namespace althing::tests
