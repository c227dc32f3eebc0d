// DP groups: each has a pool and sequences of its own, a sequence starts where most pages are free, and pressure in one group leaves others alone.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include <map>

#include "scheduler/journal.hpp"
#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

scheduler::CoreConfig groups_of(std::uint32_t dp_groups, std::uint32_t pages) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{0, 4, {0}}};
  config.kv.page_count = pages;
  config.dp_groups = dp_groups;
  return config;
}

class CoreGroups : public CoreScript {
 protected:
  // The group of each stay of a request in a row, in order.
  std::vector<std::uint32_t> groups(std::uint64_t id) {
    std::vector<std::uint32_t> list;
    for (const StepPlan& plan : harness().plans())
      for (const RowSetup& setup : plan.set)
        if (setup.request.value == id) list.push_back(setup.dp_group.value);
    return list;
  }
};

TEST_F(CoreGroups, a_sequence_starts_where_most_pages_are_free_and_ties_go_to_the_lower_group) {
  auto config = groups_of(2, 20);
  config.limits.step_tokens_max = 32;
  start(config);
  on(request(1, 8, 20));  // 2 pages of group 0
  on(request(2, 4, 20));  // 1 page of group 1
  on(request(3, 4, 20));  // group 1 has more left …
  on(request(4, 4, 20));  // … and now as many as group 0
  on(ready(1));
  EXPECT_THAT(groups(1), ElementsAre(0));
  EXPECT_THAT(groups(2), ElementsAre(1));
  EXPECT_THAT(groups(3), ElementsAre(1));
  EXPECT_THAT(groups(4), ElementsAre(0));
  run_to_end();
  expect_baseline();
}

TEST_F(CoreGroups, pools_are_divided_and_name_the_same_pages) {
  start(groups_of(2, 6));
  EXPECT_EQ(harness().stats().pages_total, 12u);
  // 22 tokens need 6 pages: one group's pool. 26 need 7, which no pool has, however many groups there are.
  EXPECT_THAT(refusal(request(9, 13, 13)).message, HasSubstr("holds 25 of one request"));
  on(request(1, 8, 14));
  on(request(2, 8, 14));
  on(ready(1));
  std::map<std::uint64_t, std::vector<std::uint32_t>> pages;
  std::uint32_t most = 0;
  while (harness().awaited() > 0) {
    most = std::max(most, harness().stats().pages_used);
    deliver();
  }
  for (const StepPlan& plan : harness().plans())
    for (const PageGrant& grant : plan.pages)
      for (const PageId page : grant.pages) pages[grant.row.value].push_back(page.value);
  EXPECT_THAT(pages[0], ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(pages[1], pages[0]) << "both run to their end beside each other, on the same page numbers of two pools";
  EXPECT_EQ(most, 12u);
  EXPECT_EQ(harness().stats().preemptions, 0u);
  expect_baseline();
}

TEST_F(CoreGroups, pressure_in_one_group_preempts_nobody_of_another) {
  start(groups_of(2, 8));
  on(request(1, 4, 28));  // group 0: 8 pages at its end
  on(request(2, 4, 4));   // group 1, alone
  on(request(3, 4, 28));  // with the first, as both groups have as many pages left
  on(ready(1));
  std::uint32_t preempted = 0;
  run_to_end();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(reason(id), FinishReason::length);
    preempted += stream(id).finished->usage.preemptions;
  }
  EXPECT_THAT(groups(1), ElementsAre(0));
  EXPECT_THAT(groups(2), ElementsAre(1));
  // The third is taken off its row when the first needs the pages, and goes on in the group that is free by then.
  EXPECT_THAT(groups(3), ElementsAre(0, 1));
  EXPECT_EQ(preempted, 1u);
  expect_baseline();
}

TEST_F(CoreGroups, the_head_of_the_queue_waits_for_whichever_group_has_room_first) {
  auto config = groups_of(3, 4);
  start(config);
  on(ready(1));
  on(request(1, 8, 8));  // each fills its group
  on(request(2, 8, 3));
  on(request(3, 8, 8));
  on(request(4, 8, 8));
  EXPECT_TRUE(groups(4).empty());
  run_to_end();
  EXPECT_THAT(groups(4), ElementsAre(1));
  EXPECT_EQ(harness().stats().preemptions, 0u);
  expect_baseline();
}

TEST_F(CoreGroups, a_lost_membership_empties_every_pool_and_sequences_are_placed_anew) {
  start(groups_of(2, 20));
  on(ready(1));
  for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, 8, 12));
  deliver();
  on(lost(1));
  EXPECT_EQ(harness().stats().pages_used, 0u);
  on(ready(2));
  run_to_end();
  EXPECT_THAT(groups(1), ElementsAre(0, 0));
  EXPECT_THAT(groups(2), ElementsAre(1, 1));
  expect_baseline();
}

TEST_F(CoreGroups, a_core_without_groups_or_with_too_many_is_refused) {
  for (const std::uint32_t count : {0u, 65u}) {
    const auto core = scheduler::Core::create(groups_of(count, 10));
    ASSERT_FALSE(core.ok());
    EXPECT_EQ(core.error().field, "dp_groups");
  }
}

TEST_F(CoreGroups, the_journal_keeps_how_many_there_are) {
  EXPECT_EQ(scheduler::from_config_line(scheduler::to_config_line(groups_of(3, 10)))->dp_groups, 3u);
}

}  // namespace
}  // namespace althing::tests
