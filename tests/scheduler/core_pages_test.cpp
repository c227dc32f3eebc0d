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

}  // namespace
}  // namespace althing::tests
