// Tenants share the tokens that the server computes: who floods it waits behind himself, and nobody waits for ever.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CoreFair : public CoreScript {
 protected:
  static scheduler::CoreConfig busy_config() {
    scheduler::CoreConfig config = easy_config();
    config.limits.sequences_max = 2000;
    config.limits.rows_max = 16;
    config.limits.step_tokens_max = 64;
    config.limits.prefill_chunk_max = 32;
    config.limits.context_tokens_max = 256;
    config.limits.completion_tokens_max = 256;
    config.kv.page_count = 4000;
    return config;
  }
  static Submitted of(std::uint64_t tenant, std::uint64_t id, std::uint32_t prompt, std::uint32_t completion) {
    Submitted s = request(id, prompt, completion);
    s.tenant = TenantId{tenant};
    s.salt = PageKey{tenant, 1};
    return s;
  }
  bool has_tokens(std::uint64_t id) { return !stream(id).tokens.empty(); }
  // Steps that are done before the request has its first token.
  int steps_to_first(std::uint64_t id, int most = 1000) {
    int steps = 0;
    while (!has_tokens(id) && steps < most && harness().awaited() > 0) {
      deliver();
      ++steps;
    }
    return steps;
  }
  std::vector<Preempted> preempted(PreemptionCause cause) {
    std::vector<Preempted> found;
    for (const Preempted& one : seen_)
      if (one.cause == cause) found.push_back(one);
    return found;
  }
  std::vector<std::uint64_t> order_of_ends() {
    std::vector<std::uint64_t> order;
    while (harness().awaited() > 0) {
      deliver();
      for (const Finished& end : all<Finished>(harness().effects())) order.push_back(end.request.value);
    }
    return order;
  }
  void deliver_and_see() {
    deliver();
    for (const Preempted& one : all<Preempted>(harness().effects())) seen_.push_back(one);
  }
  std::vector<Preempted> seen_;
};

// With the two steps that were planned before it came, the third done one is the first that can hold it.
TEST_F(CoreFair, one_request_does_not_wait_behind_the_thousand_of_another) {
  start(busy_config());
  on(ready(1));
  for (std::uint64_t i = 1; i <= 1000; ++i) on(of(1, i, 20, 200));
  for (int i = 0; i < 100; ++i) deliver();
  ASSERT_EQ(harness().stats().running, 16u);
  on(of(2, 5000, 20, 10));
  EXPECT_LE(steps_to_first(5000), 4);
  EXPECT_EQ(harness().stats().preemptions_for_share, 1u);
  EXPECT_EQ(harness().stats().tenants, 2u);
}

TEST_F(CoreFair, nor_when_its_pages_are_all_held_by_the_other) {
  auto config = busy_config();
  config.kv.page_count = 120;
  start(config);
  on(ready(1));
  for (std::uint64_t i = 1; i <= 200; ++i) on(of(1, i, 60, 150));
  for (int i = 0; i < 50; ++i) deliver();
  ASSERT_LT(harness().stats().running, 16u) << "pages are what is short here";
  on(of(2, 5000, 40, 4));
  // Pages given up come back when the steps in flight are done.
  EXPECT_LE(steps_to_first(5000), 8);
  EXPECT_GT(harness().stats().preemptions_for_share, 0u);
}

TEST_F(CoreFair, nor_behind_the_long_prompts_of_another) {
  auto config = busy_config();
  start(config);
  on(ready(1));
  for (std::uint64_t i = 1; i <= 12; ++i) on(of(1, i, 250, 2));
  deliver();
  on(of(2, 5000, 20, 4));
  EXPECT_LE(steps_to_first(5000), 4) << "a prompt of one chunk, before the chunks of those that are older";
}

// Eight tenants ask for very different amounts; while all have work, they get the same.
TEST_F(CoreFair, eight_unequal_tenants_get_equal_shares) {
  start(busy_config());
  on(ready(1));
  std::uint64_t id = 0;
  for (std::uint64_t tenant = 1; tenant <= 8; ++tenant)
    for (std::uint64_t i = 0; i < 15 * tenant; ++i)
      on(of(tenant, ++id, static_cast<std::uint32_t>(5 + 11 * tenant), static_cast<std::uint32_t>(10 + 15 * (9 - tenant))));
  for (int i = 0; i < 400; ++i) deliver();
  std::vector<double> served(9);
  std::vector<bool> waits(9);
  for (const auto& [request, stream] : harness().streams()) {
    const auto tenant = stream.submitted.tenant.value;
    if (stream.tokens.empty() && !stream.finished)
      waits[tenant] = true;
    else
      served[tenant] += static_cast<double>(stream.submitted.prompt.size() + 2 * stream.tokens.size());
  }
  double sum = 0, squares = 0;
  for (std::size_t tenant = 1; tenant <= 8; ++tenant) {
    ASSERT_TRUE(waits[tenant]) << "tenant " << tenant << " has nothing left to do, so it cannot be compared";
    sum += served[tenant];
    squares += served[tenant] * served[tenant];
  }
  EXPECT_GE(sum * sum / (8 * squares), 0.95) << "Jain's index";
}

TEST_F(CoreFair, who_was_idle_has_saved_nothing_up) {
  auto config = busy_config();
  config.limits.rows_max = 2;
  start(config);
  on(ready(1));
  on(of(1, 1, 4, 200));
  on(of(2, 2, 4, 200));
  for (int i = 0; i < 150; ++i) deliver();
  // A third that was never there begins where the others are, not 150 steps behind: it gets a fair share, not everything.
  for (std::uint64_t i = 0; i < 40; ++i) on(of(3, 10 + i, 4, 20));
  for (std::uint64_t i = 0; i < 40; ++i) on(of(1, 100 + i, 4, 20));
  for (std::uint64_t i = 0; i < 40; ++i) on(of(2, 200 + i, 4, 20));
  for (int i = 0; i < 240; ++i) deliver();
  std::vector<std::size_t> tokens(4);
  for (const auto& [request, stream] : harness().streams())
    if (request.value >= 10) tokens[stream.submitted.tenant.value] += stream.tokens.size();
  const double mean = static_cast<double>(tokens[1] + tokens[2] + tokens[3]) / 3;
  for (int tenant = 1; tenant <= 3; ++tenant) EXPECT_NEAR(static_cast<double>(tokens[tenant]), mean, 0.35 * mean) << tenant;
}

TEST_F(CoreFair, within_a_tenant_a_priority_is_a_head_start) {
  auto config = busy_config();
  config.limits.rows_max = 1;
  config.limits.priority_ms = 1000;
  start(config);
  on(ready(1));
  on(of(1, 1, 4, 3));
  const auto with = [&](std::uint64_t id, std::int32_t priority) {
    Submitted s = of(1, id, 4, 1);
    s.priority = priority;
    on(s);
  };
  with(2, 0);
  with(3, 2);
  with(4, -1);
  on(Ticked{1500});
  with(5, 1);  // came 1.5 s after the second, with a head start of 1 s
  on(Ticked{4000});
  with(6, 4);  // and nobody waits for ever: 4 s late with 4 s of head start is a tie, and the earlier goes first
  EXPECT_THAT(order_of_ends(), ElementsAre(1, 3, 2, 6, 5, 4));
}

TEST_F(CoreFair, a_near_deadline_is_a_head_start_too) {
  auto config = busy_config();
  config.limits.rows_max = 1;
  config.limits.deadline_near_ms = 1000;
  start(config);
  on(ready(1));
  on(Ticked{10'000});
  on(of(1, 1, 4, 3));
  on(of(1, 2, 4, 1));
  Submitted far = of(1, 3, 4, 1), near = of(1, 4, 4, 1), nearer = of(1, 5, 4, 1);
  far.deadline_ms = 20'000;
  near.deadline_ms = 10'900;
  nearer.deadline_ms = 10'500;
  on(far);
  on(near);
  on(nearer);
  EXPECT_THAT(order_of_ends(), ElementsAre(1, 5, 4, 2, 3));
}

TEST_F(CoreFair, a_priority_out_of_range_is_refused) {
  start();
  Submitted s = request(1, 4, 4);
  s.priority = 5;
  const auto rejected = all<Rejected>(on(s));
  ASSERT_EQ(rejected.size(), 1u);
  EXPECT_EQ(rejected[0].error.field, "priority");
  EXPECT_THAT(rejected[0].error.message, HasSubstr("-4 to 4"));
}

// Among the younger ones of its group: the least urgent first, whatever the order they came in.
TEST_F(CoreFair, who_gives_way_for_pages_is_the_least_urgent) {
  auto config = easy_config();
  config.kv.page_count = 34;
  start(config);
  on(ready(1));
  on(of(1, 1, 8, 50));
  Submitted urgent = of(1, 3, 8, 40), late = of(1, 2, 8, 40);
  late.priority = -1;
  urgent.priority = 1;
  urgent.deadline_ms = 1'000'000;
  on(late);
  on(urgent);
  while (harness().awaited() > 0 && seen_.empty()) deliver_and_see();
  ASSERT_FALSE(seen_.empty()) << "they were to run out of pages";
  EXPECT_EQ(seen_[0].request, RequestId{2});
  EXPECT_EQ(seen_[0].cause, PreemptionCause::pages);
  EXPECT_GT(seen_[0].tokens, 0u);
  run_to_end();
  expect_baseline();
}

TEST_F(CoreFair, a_preempted_request_comes_back_before_later_arrivals) {
  auto config = busy_config();
  config.limits.rows_max = 2;
  start(config);
  on(ready(1));
  on(of(1, 1, 4, 40));
  on(of(1, 2, 4, 40));
  for (int i = 0; i < 5; ++i) deliver();
  on(of(1, 3, 4, 5));
  on(of(2, 9, 4, 5));
  while (harness().awaited() > 0) deliver_and_see();
  ASSERT_EQ(preempted(PreemptionCause::share).size(), 1u);
  EXPECT_EQ(seen_[0], (Preempted{RequestId{2}, RequestId{9}, PreemptionCause::share, seen_[0].tokens})) << "the younger of the two that ran";
  std::vector<std::uint64_t> rows;
  for (const StepPlan& plan : harness().plans())
    for (const RowSetup& setup : plan.set) rows.push_back(setup.request.value);
  EXPECT_THAT(rows, ElementsAre(1, 2, 9, 2, 3));
}

TEST_F(CoreFair, who_shares_a_tenant_displaces_nobody) {
  start(busy_config());
  on(ready(1));
  for (std::uint64_t i = 1; i <= 100; ++i) on(of(7, i, 20, 50));
  run_to_end();
  EXPECT_EQ(harness().stats().preemptions, 0u);
}

TEST_F(CoreFair, a_tenant_may_hold_no_more_than_its_bound_and_is_told_when_to_come_back) {
  auto config = busy_config();
  config.limits.tenant_sequences_max = 20;
  config.limits.choices_max = 32;
  start(config);
  on(ready(1));
  for (std::uint64_t i = 1; i <= 20; ++i) on(of(1, i, 4, 20));
  auto rejected = all<Rejected>(on(of(1, 21, 4, 20)));
  ASSERT_EQ(rejected.size(), 1u);
  EXPECT_EQ(rejected[0].error.code, ErrorCode::busy);
  EXPECT_THAT(rejected[0].error.message, HasSubstr("20 sequences of this tenant"));
  EXPECT_EQ(rejected[0].error.retry_after_ms, 0u) << "nothing has ended yet, so nothing is known";
  EXPECT_EQ(all<Accepted>(on(of(2, 22, 4, 20))).size(), 1u) << "others have room";
  Submitted many = of(3, 1000, 4, 20);
  many.choices = 16;
  EXPECT_EQ(all<Accepted>(on(many)).size(), 1u);
  many.request = RequestId{1100};
  many.choices = 5;
  EXPECT_EQ(all<Rejected>(on(many)).at(0).error.code, ErrorCode::busy) << "21 in all";
  many.tenant = TenantId{4};  // nobody has heard of it yet
  many.choices = 21;
  EXPECT_EQ(all<Rejected>(on(many)).at(0).error.code, ErrorCode::too_large);
  std::uint64_t now = 0;
  while (harness().stats().running + harness().stats().waiting > 4) {
    on(Ticked{now += 100});
    deliver();
  }
  for (std::uint64_t i = 100; i < 120; ++i) on(of(1, i, 4, 20));
  rejected = all<Rejected>(on(of(1, 121, 4, 20)));
  ASSERT_EQ(rejected.size(), 1u);
  EXPECT_GE(rejected[0].error.retry_after_ms, 50u);
  EXPECT_LE(rejected[0].error.retry_after_ms, 60'000u);
  EXPECT_THAT(rejected[0].error.message, HasSubstr("in about"));
  run_to_end();
  expect_baseline();
}

// Four times as many requests as fit, of very different lengths: what is lost to preemption and computed again stays small.
class Overload : public CoreFair, public testing::WithParamInterface<bool> {};

TEST_P(Overload, recomputes_little) {
  auto config = busy_config();
  config.limits.rows_max = 32;
  config.limits.step_tokens_max = 128;
  config.limits.context_tokens_max = 512;
  config.limits.completion_tokens_max = 512;
  config.kv.page_count = 700;
  config.share_prefixes = GetParam();
  start(config);
  on(ready(1));
  std::uint64_t state = 1;
  const auto between = [&](std::uint32_t low, std::uint32_t high) {
    state = mix(state, 7);
    return low + static_cast<std::uint32_t>(state % (high - low + 1));
  };
  std::uint32_t completions = 0;
  for (std::uint64_t i = 1; i <= 600; ++i) {
    Submitted s = of(i % 5, i, between(10, 200), between(10, i % 7 == 0 ? 300 : 120));
    s.prompt[0] = static_cast<TokenId>(i);  // nothing is shared but with itself
    completions += s.sampling.completion_tokens_max;
    on(s);
  }
  run_to_end();
  const auto stats = harness().stats();
  EXPECT_GT(stats.preemptions, 0u);
  const double share = static_cast<double>(stats.tokens_recomputed) / static_cast<double>(stats.prompt_tokens + completions);
  std::printf("    %llu preemptions, %llu of them for a share, %.1f %% of the tokens computed again\n",
              static_cast<unsigned long long>(stats.preemptions), static_cast<unsigned long long>(stats.preemptions_for_share), 100 * share);
  EXPECT_LT(share, 0.08);
  expect_baseline();
}

INSTANTIATE_TEST_SUITE_P(CoreFair, Overload, testing::Bool(), [](const auto& kind) { return kind.param ? "with_shared_prefixes" : "without"; });

}  // namespace
}  // namespace althing::tests
