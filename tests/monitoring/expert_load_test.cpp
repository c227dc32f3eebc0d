// The accounting of expert tokens: totals that survive restarts of a rank, and windows that forget.
#include "monitoring/expert_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace althing::monitoring {
namespace {

using Counts = std::vector<std::uint64_t>;

Counts copy(std::span<const std::uint64_t> numbers) { return {numbers.begin(), numbers.end()}; }

TEST(ExpertLoad, gains_are_differences_of_cumulative_reports) {
  ExpertLoad load({2, 2, 2});
  EXPECT_EQ(copy(load.report(0, Counts{1, 2, 3, 4})), (Counts{3, 7}));
  EXPECT_EQ(copy(load.report(0, Counts{1, 5, 3, 4})), (Counts{3, 0}));
  EXPECT_EQ(copy(load.report(1, Counts{10, 0, 0, 20})), (Counts{10, 20}));
}

TEST(ExpertLoad, one_smaller_count_starts_a_new_run_of_the_whole_rank) {
  ExpertLoad load({1, 1, 3});
  load.report(0, Counts{10, 10, 10});
  // Two of three counts passed the old ones already; a decision per cell would lose 20 tokens.
  EXPECT_EQ(copy(load.report(0, Counts{12, 11, 3})), (Counts{26}));
}

TEST(ExpertLoad, a_lost_rank_counts_from_zero_even_when_it_is_ahead) {
  ExpertLoad load({1, 1, 2});
  load.report(0, Counts{1, 1});
  load.rank_lost(0);
  EXPECT_EQ(copy(load.report(0, Counts{5, 5})), (Counts{10}));
}

TEST(ExpertLoad, foreign_ranks_and_sizes_are_refused) {
  ExpertLoad load({1, 2, 2});
  EXPECT_TRUE(load.report(1, Counts{1, 1, 1, 1}).empty());
  EXPECT_TRUE(load.report(0, Counts{1, 1, 1}).empty());
  EXPECT_TRUE(load.report(0, {}).empty());
  load.rank_lost(7);
  EXPECT_EQ(load.load(0).imbalance, 0);
}

TEST(ExpertLoad, imbalance_is_largest_over_mean_of_one_layer) {
  ExpertLoad load({1, 2, 4});
  load.report(0, Counts{4, 4, 4, 4, 16, 0, 0, 0});
  EXPECT_DOUBLE_EQ(load.load(0).imbalance, 1.0);
  EXPECT_DOUBLE_EQ(load.load(1).imbalance, 4.0);
  EXPECT_EQ(load.load(1).experts_idle, 0u) << "16 tokens are too few to call an expert idle";
}

TEST(ExpertLoad, the_window_forgets_old_traffic) {
  ExpertLoad load({1, 1, 2});
  const std::uint64_t bucket = 2 * ExpertLoad::bucket_tokens_per_expert;
  load.report(0, Counts{bucket, 0});
  EXPECT_DOUBLE_EQ(load.load(0).imbalance, 2.0);
  EXPECT_EQ(load.load(0).experts_idle, 1u);
  load.report(0, Counts{bucket + bucket / 2, bucket / 2});  // closes a second bucket: the first is gone
  EXPECT_DOUBLE_EQ(load.load(0).imbalance, 1.0);
  EXPECT_EQ(load.load(0).experts_idle, 0u);
}

TEST(ExpertLoad, totals_equal_a_recount_over_random_runs) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ExpertLoad load({3, 2, 4});
    std::vector<Counts> running(3, Counts(8, 0));
    std::uint64_t counted = 0, truth = 0;
    for (int event = 0; event < 100; ++event) {
      const auto rank = static_cast<std::uint32_t>(random() % 3);
      if (random() % 10 == 0) {
        running[rank].assign(8, 0);
        load.rank_lost(rank);
      }
      for (auto& cell : running[rank]) {
        const std::uint64_t more = random() % 5;
        cell += more;
        truth += more;
      }
      const auto gained = load.report(rank, running[rank]);
      counted = std::accumulate(gained.begin(), gained.end(), counted);
      ASSERT_EQ(counted, truth) << "seed " << seed << " event " << event;
    }
  }
}

TEST(ExpertLoad, a_grid_without_layers_takes_empty_reports) {
  ExpertLoad load({1, 0, 0});
  EXPECT_TRUE(load.report(0, {}).empty());
}

}  // namespace
}  // namespace althing::monitoring
