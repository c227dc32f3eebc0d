// Pages that may hold NaN: nobody gets them before a step has scrubbed them, whatever else happens meanwhile, and none is lost.
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using GroupPages = std::set<std::pair<DpGroup, PageId>>;

GroupPages scrubbed(const StepPlan& plan) {
  GroupPages pages;
  for (const LeftPage& left : plan.scrub) EXPECT_TRUE(pages.emplace(left.dp_group, left.page).second) << "twice";
  return pages;
}

// A core whose first draw is NaN, without a judge: the judge's model knows of no NaN where the test makes one up.
class CoreQuarantine : public testing::Test {
 protected:
  CoreQuarantine() : core_(std::move(*scheduler::Core::create(easy_config()))) { on(ready(1)); }

  std::vector<Effect> on(const Event& event) {
    const auto effects = core_->on(event);
    EXPECT_EQ(core_->check_invariants(), "");
    std::vector<Effect> copy(effects.begin(), effects.end());
    for (const auto& run : all<RunStep>(copy)) plans_.push_back(run.plan);
    return copy;
  }
  // The oldest plan's result, with one draw per sampled row.
  std::vector<Effect> finish(bool nonfinite = false) {
    const StepPlan plan = plans_.at(done_++);
    StepResult result{plan.step, plan.epoch, {}};
    for (const RowWork& work : plan.work)
      if (work.sample) result.drawn.push_back({work.row, request_of(plan, work.row), 5, std::exchange(nonfinite, false)});
    return on(StepDone{result});
  }
  RequestId request_of(const StepPlan& until, RowIndex row) const {
    RequestId request;
    for (const StepPlan& plan : plans_) {
      for (const RowSetup& setup : plan.set)
        if (setup.row == row) request = setup.request;
      if (plan.step == until.step) break;
    }
    return request;
  }
  // To everybody, or to one request.
  GroupPages granted(std::size_t first_plan, std::optional<RequestId> to = {}) const {
    std::map<RowIndex, RowSetup> rows;
    GroupPages pages;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      for (const RowSetup& setup : plans_[i].set) rows[setup.row] = setup;
      for (const PageGrant& grant : plans_[i].pages)
        for (const PageId page : grant.pages)
          if (i >= first_plan && (!to || rows.at(grant.row).request == *to)) pages.emplace(rows.at(grant.row).dp_group, page);
    }
    return pages;
  }

  std::unique_ptr<scheduler::Core> core_;
  std::vector<StepPlan> plans_;
  std::size_t done_ = 0;
};

TEST_F(CoreQuarantine, pages_of_a_request_with_nan_are_scrubbed_by_a_step_and_free_after_it) {
  on(request(1, 3, 4));
  const auto held = granted(0);
  ASSERT_FALSE(held.empty());
  finish(true);  // the second step is in flight, and may still write these pages
  EXPECT_EQ(core_->stats().pages_used, held.size());
  finish();
  ASSERT_EQ(plans_.size(), 3u) << "a step that only scrubs";
  EXPECT_TRUE(plans_[2].work.empty());
  EXPECT_EQ(scrubbed(plans_[2]), held);
  EXPECT_EQ(core_->stats().pages_used, held.size()) << "not before the step is done";
  finish();
  EXPECT_EQ(core_->stats().pages_used, 0u);
  EXPECT_EQ(plans_.size(), 3u);
}

TEST_F(CoreQuarantine, a_request_without_nan_has_nothing_scrubbed) {
  on(request(1, 3, 2));
  while (done_ < plans_.size()) finish();
  for (const StepPlan& plan : plans_) EXPECT_TRUE(plan.scrub.empty());
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

TEST_F(CoreQuarantine, nobody_gets_a_page_before_it_is_scrubbed) {
  on(request(1, 3, 4));
  const auto held = granted(0);
  finish(true);
  const std::size_t before = plans_.size();
  on(request(2, 3, 4));
  for (const auto& place : granted(before)) EXPECT_FALSE(held.contains(place)) << place.second.value;
  while (done_ < plans_.size()) finish();
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

TEST_F(CoreQuarantine, a_lost_membership_does_not_forget_what_is_to_be_scrubbed) {
  on(request(1, 3, 4));
  const auto held = granted(0);
  finish(true);
  finish();
  ASSERT_FALSE(plans_.back().scrub.empty());
  on(lost(1));  // whether the scrub was done nobody knows
  EXPECT_EQ(core_->stats().pages_used, held.size());
  on(ready(2));
  EXPECT_EQ(scrubbed(plans_.back()), held);
  EXPECT_TRUE(plans_.back().snapshot);
  done_ = plans_.size() - 1;
  finish();
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

TEST_F(CoreQuarantine, nan_of_a_request_that_was_cancelled_meanwhile_is_quarantined_too) {
  on(request(1, 3, 4));
  const auto held = granted(0);
  on(cancelled(1));
  finish(true);
  finish();
  EXPECT_EQ(scrubbed(plans_.back()), held);
  finish();
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

// Page numbers of two DP groups are two pages.
TEST_F(CoreQuarantine, pages_are_scrubbed_in_their_own_dp_group_only) {
  auto config = easy_config();
  config.dp_groups = 2;
  core_ = std::move(*scheduler::Core::create(config));
  on(request(1, 3, 4));
  on(request(2, 3, 4));
  on(ready(1));
  const auto first = granted(0, RequestId{1}), second = granted(0, RequestId{2});
  ASSERT_NE(first.begin()->first, second.begin()->first) << "each group has one";
  ASSERT_EQ(first.begin()->second, second.begin()->second) << "and their pages have the same numbers";
  finish(true);
  while (done_ < plans_.size()) finish();
  GroupPages all;
  for (const StepPlan& plan : plans_) all.merge(scrubbed(plan));
  EXPECT_EQ(all, first);
  EXPECT_EQ(core_->stats().running + core_->stats().waiting, 0u);
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

TEST_F(CoreQuarantine, a_pool_that_is_all_in_quarantine_frees_itself) {
  auto config = easy_config();
  config.kv.page_count = 2;
  config.limits.context_tokens_max = 4;
  config.limits.completion_tokens_max = 4;
  core_ = std::move(*scheduler::Core::create(config));
  on(ready(1));
  on(request(1, 2, 2));
  on(request(2, 2, 2));
  finish(true);
  while (done_ < plans_.size()) finish();
  EXPECT_EQ(core_->stats().running + core_->stats().waiting, 0u) << "the second request had its turn";
  EXPECT_EQ(core_->stats().pages_used, 0u);
}

}  // namespace
}  // namespace althing::tests
