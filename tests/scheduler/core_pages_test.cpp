// KV pages: granted just in time, slid out of windows, given up under pressure, and always back in the pool at the end.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using CorePages = CoreScript;

scheduler::CoreConfig one_full_group(std::uint32_t pages) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{0, 4, {0}}};
  config.kv.page_count = pages;
  return config;
}

std::size_t granted(const StepPlan& plan) {
  std::size_t sum = 0;
  for (const PageGrant& grant : plan.pages) sum += grant.pages.size();
  return sum;
}

TEST_F(CorePages, pages_are_granted_for_the_step_and_no_earlier) {
  start(one_full_group(50));
  on(ready(1));
  on(request(1, 6, 6));
  run_to_end();
  std::vector<std::size_t> grants;
  for (const StepPlan& plan : harness().plans()) grants.push_back(granted(plan));
  EXPECT_EQ(grants, (std::vector<std::size_t>{2, 0, 0, 1, 0, 0}));
  EXPECT_EQ(harness().plans()[0].pages.at(0).pages, (std::vector<PageId>{PageId{0}, PageId{1}})) << "lowest first";
}

TEST_F(CorePages, a_window_group_gives_back_pages_that_slid_out) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{6, 4, {0}}};
  start(config);
  on(ready(1));
  on(request(1, 8, 50));
  std::uint32_t most = 0;
  while (harness().awaited() > 0) {
    most = std::max(most, harness().stats().pages_used);
    deliver();
  }
  EXPECT_LE(most, 4u) << "a window of 6, a chunk of 8, pages of 4";
  EXPECT_EQ(stream(1).tokens.size(), 50u);
  expect_baseline();
}

TEST_F(CorePages, when_the_pool_is_dry_the_latest_gives_way_and_every_stream_is_unchanged) {
  auto config = one_full_group(10);
  start(config);
  on(ready(1));
  for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, 4, 30));
  run_to_end();
  EXPECT_GT(harness().stats().preemptions, 0u);
  EXPECT_EQ(stream(1).finished->usage.preemptions, 0u) << "the oldest never gives way";
  EXPECT_GT(stream(2).finished->usage.preemptions + stream(3).finished->usage.preemptions + stream(4).finished->usage.preemptions, 0u);
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(stream(id).tokens.size(), 30u);
  expect_baseline();
}

TEST_F(CorePages, two_requests_that_cannot_both_fit_both_finish_and_each_step_makes_progress) {
  auto config = one_full_group(8);
  start(config);
  on(ready(1));
  on(request(1, 10, 20));
  on(request(2, 10, 20));
  std::size_t steps = 0;
  for (; harness().awaited() > 0 && steps < 200; ++steps) deliver();
  EXPECT_EQ(reason(1), FinishReason::length);
  EXPECT_EQ(reason(2), FinishReason::length);
  EXPECT_LE(steps, 60u) << "2 x 20 tokens, prompts and one recomputation";
  expect_baseline();
}

TEST_F(CorePages, two_requests_that_exactly_fit_together_run_together_without_preemption) {
  // 13 positions each (10 + 4 tokens, the last one not computed): 4 pages each, 8 in all.
  start(one_full_group(8));
  on(ready(1));
  on(request(1, 10, 4));
  on(request(2, 10, 4));
  std::uint32_t most = 0;
  while (harness().awaited() > 0) {
    most = std::max(most, harness().stats().running);
    deliver();
  }
  EXPECT_EQ(most, 2u);
  EXPECT_EQ(harness().stats().preemptions, 0u);
  expect_baseline();
}

TEST_F(CorePages, a_chunk_shrinks_to_the_pages_that_are_left) {
  auto config = one_full_group(6);
  start(config);
  on(ready(1));
  on(request(1, 12, 10));  // 21 positions: the whole pool
  deliver();
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  // Beside it nothing can start before its end: one more page would be taken from it.
  start(config);
  on(ready(1));
  on(request(1, 4, 18));
  on(request(2, 12, 10));
  run_to_end();
  EXPECT_EQ(stream(1).finished->usage.preemptions, 0u);
  EXPECT_EQ(reason(2), FinishReason::length);
  expect_baseline();
}

TEST_F(CorePages, a_preempted_request_is_first_in_line_again) {
  start(one_full_group(9));
  on(ready(1));
  for (std::uint64_t id = 1; id <= 5; ++id) on(request(id, 4, 28));
  std::vector<std::uint64_t> ends;
  while (harness().awaited() > 0)
    for (const Finished& end : all<Finished>(deliver())) ends.push_back(end.request.value);
  EXPECT_EQ(ends, (std::vector<std::uint64_t>{1, 2, 3, 4, 5})) << "equal requests end in order of arrival";
  EXPECT_GT(harness().stats().preemptions, 0u);
  expect_baseline();
}

TEST_F(CorePages, an_oversized_request_in_the_queue_does_not_block_others) {
  start(one_full_group(6));
  on(ready(1));
  on(request(1, 4, 4));
  EXPECT_EQ(refusal(request(2, 40, 10)).code, ErrorCode::too_large);
  on(request(3, 4, 4));
  run_to_end();
  EXPECT_EQ(reason(3), FinishReason::length);
}

// The client leaves after each possible number of events: the pool must return to its baseline exactly.
TEST_F(CorePages, a_client_that_leaves_at_any_step_leaks_no_page) {
  for (int leave_after = 0; leave_after < 30; ++leave_after) {
    auto config = easy_config();
    config.kv.page_count = 24;
    start(config);
    on(ready(1));
    for (std::uint64_t id = 1; id <= 3; ++id) on(request(id, 9, 20));
    for (int i = 0; i < leave_after && harness().awaited() > 0; ++i) deliver();
    on(cancelled(2));
    run_to_end();
    EXPECT_EQ(reason(1), FinishReason::length);
    EXPECT_EQ(reason(3), FinishReason::length);
    expect_baseline();
  }
}

// gpt-oss-20b in bf16: 12 layers of full attention and 12 with a window of 128, 8 KV heads of 64, pages of 16 tokens in both groups.
TEST_F(CorePages, window_layers_of_long_sequences_hold_their_windows_and_no_more) {
  constexpr std::uint64_t token_bytes = std::uint64_t{12} * 2 * 8 * 64 * 2;  // of one group
  constexpr std::uint32_t sequences = 32, length = 8192;
  auto config = easy_config();
  config.vocabulary = 201'088;
  config.limits.rows_max = sequences;
  config.limits.sequences_max = sequences;
  config.limits.step_tokens_max = sequences * 256;
  config.limits.prefill_chunk_max = 256;
  config.limits.context_tokens_max = length + 1;
  config.kv.groups = {KvGroup{0, 16, {1}}, KvGroup{128, 16, {0}}};
  config.kv.page_bytes = 16 * token_bytes;
  config.kv.page_count = sequences * (length / 16 + 40);
  auto core = std::move(*scheduler::Core::create(config));
  core->on(ready(1));
  std::vector<StepPlan> plans;
  const auto take = [&](std::span<const Effect> effects) {
    for (const Effect& effect : effects)
      if (const auto* run = std::get_if<RunStep>(&effect)) plans.push_back(run->plan);
  };
  for (std::uint64_t id = 1; id <= sequences; ++id) take(core->on(request(id, length, 1)));
  std::uint32_t used = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    used = std::max(used, core->stats().pages_used);
    StepResult result{plans[i].step, plans[i].epoch, {}};
    for (const RowWork& work : plans[i].work)
      if (work.sample) result.drawn.push_back({work.row, RequestId{work.row.value + 1}, 1, false});
    take(core->on(StepDone{result}));
  }
  ASSERT_GT(used, sequences * (length / 16 - 1));
  // While chunks are computed a window reaches over the chunk, too, and two steps are in flight.
  const std::uint64_t full = std::uint64_t{sequences} * length * token_bytes;
  EXPECT_LE(full, std::uint64_t{6} << 30);
  EXPECT_LE(used * config.kv.page_bytes, full + std::uint64_t{sequences} * (128 + 2 * 16 + 2 * 256) * token_bytes);

  // Decoding at that length: window and two pages.
  used = 0;
  config.limits.context_tokens_max = length + 100;
  core = std::move(*scheduler::Core::create(config));
  plans.clear();
  take(core->on(ready(1)));
  for (std::uint64_t id = 1; id <= sequences; ++id) take(core->on(request(id, length - 60, 61)));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool decodes = std::all_of(plans[i].work.begin(), plans[i].work.end(), [](const RowWork& work) { return work.count == 1; });
    StepResult result{plans[i].step, plans[i].epoch, {}};
    for (const RowWork& work : plans[i].work)
      if (work.sample) result.drawn.push_back({work.row, RequestId{work.row.value + 1}, 1, false});
    take(core->on(StepDone{result}));
    if (decodes) used = std::max(used, core->stats().pages_used);
  }
  ASSERT_GT(used, 0U);
  EXPECT_LE(used * config.kv.page_bytes, (std::uint64_t{6} << 30) + std::uint64_t{sequences} * (128 + 2 * 16) * token_bytes);
}

}  // namespace
}  // namespace althing::tests
