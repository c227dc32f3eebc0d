// Differences of cumulative counts: over restarts that are announced, and over those that are not.
#include "monitoring/rank_reports.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace althing::monitoring {
namespace {

using testing::ElementsAre;
using Counts = std::vector<std::uint64_t>;

TEST(RankReports, gains_are_differences_of_cumulative_reports) {
  RankReports reports(2, 3);
  EXPECT_THAT(reports.gained(0, Counts{1, 2, 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(reports.gained(1, Counts{5, 5, 5}), ElementsAre(5, 5, 5)) << "ranks do not know of each other";
  EXPECT_THAT(reports.gained(0, Counts{1, 4, 3}), ElementsAre(0, 2, 0));
}

TEST(RankReports, one_smaller_count_starts_a_new_run_of_the_whole_rank) {
  RankReports reports(1, 3);
  reports.gained(0, Counts{10, 10, 10});
  EXPECT_THAT(reports.gained(0, Counts{11, 2, 12}), ElementsAre(11, 2, 12));
}

TEST(RankReports, a_lost_rank_counts_from_zero_even_when_it_is_ahead) {
  RankReports reports(1, 2);
  reports.gained(0, Counts{3, 3});
  reports.rank_lost(0);
  reports.rank_lost(7);  // nobody
  EXPECT_THAT(reports.gained(0, Counts{4, 4}), ElementsAre(4, 4));
}

TEST(RankReports, foreign_ranks_and_sizes_are_refused) {
  RankReports reports(1, 4);
  EXPECT_TRUE(reports.gained(1, Counts{1, 1, 1, 1}).empty());
  EXPECT_TRUE(reports.gained(0, Counts{1, 1, 1}).empty());
  EXPECT_TRUE(reports.gained(0, {}).empty());
  EXPECT_THAT(reports.gained(0, Counts{1, 1, 1, 1}), ElementsAre(1, 1, 1, 1)) << "what was refused has changed nothing";
}

TEST(RankReports, totals_equal_a_recount_over_random_runs) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    RankReports reports(2, 6);
    std::vector<Counts> running(2, Counts(6));
    Counts told(6), happened(6);
    for (int round = 0; round < 200; ++round) {
      const auto rank = static_cast<std::uint32_t>(random() % 2);
      if (random() % 10 == 0) {
        running[rank].assign(6, 0);
        reports.rank_lost(rank);
      }
      for (std::size_t cell = 0; cell < 6; ++cell) {
        const std::uint64_t more = random() % 5;
        running[rank][cell] += more;
        happened[cell] += more;
      }
      const auto gained = reports.gained(rank, running[rank]);
      for (std::size_t cell = 0; cell < 6; ++cell) told[cell] += gained[cell];
    }
    EXPECT_EQ(told, happened) << "seed " << seed;
  }
}

}  // namespace
}  // namespace althing::monitoring
