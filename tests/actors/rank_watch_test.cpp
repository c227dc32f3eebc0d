// The watch over the ranks, on a clock and a kernel that the test makes up: who is frozen or stuck is named in time, and who is merely slow never is.
#include "actors/rank_watch.hpp"

#include <map>

#include <gtest/gtest.h>

namespace althing::actors::tests {
namespace {

using std::chrono::milliseconds;
using Kind = RankWatch::Verdict::Kind;

class RankWatchTest : public testing::Test {
 protected:
  static constexpr milliseconds interval{20};

  RankWatchTest() { use({}); }

  void use(WatchLimits limits) {
    watch_.emplace(limits, [this](pid_t pid) -> std::optional<ProcessState> {
      ++asked_;
      const auto found = kernel_.find(pid);
      return found == kernel_.end() ? std::nullopt : std::optional(found->second);
    });
    for (int rank = 0; rank < 2; ++rank) {
      stamps_[rank].epoch = 1;
      kernel_[pid(rank)] = {};
    }
  }
  static pid_t pid(int rank) { return 100 + rank; }
  // One look, `passed` after the one before. Hearts beat unless the test stopped them.
  std::vector<RankWatch::Verdict> look(milliseconds passed = interval) {
    now_ += passed;
    std::vector<RankWatch::Seen> seen;
    for (int rank = 0; rank < 2; ++rank) {
      if (beats_[rank]) ++stamps_[rank].beats;
      seen.push_back({&stamps_[rank], pid(rank)});
    }
    return watch_->look(now_, seen, epoch_);
  }
  // Looks until there is a verdict, and says after how long; nothing within `most` gives nothing.
  std::optional<std::pair<RankWatch::Verdict, milliseconds>> wait(milliseconds most) {
    for (milliseconds passed = interval; passed <= most; passed += interval) {
      auto verdicts = look();
      if (!verdicts.empty()) return std::pair{verdicts[0], passed};
    }
    return std::nullopt;
  }
  void enter(int rank, std::uint64_t call) { stamps_[rank].entered = call, stamps_[rank].left = call - 1, stamps_[rank].in_flight = 1; }

  std::optional<RankWatch> watch_;
  RankStamps stamps_[2];
  bool beats_[2] = {true, true};
  std::map<pid_t, ProcessState> kernel_;
  RankWatch::Clock::time_point now_{std::chrono::seconds(1000)};
  std::uint64_t epoch_ = 1;
  int asked_ = 0;
};

TEST_F(RankWatchTest, a_healthy_pair_is_left_alone_and_the_kernel_is_not_asked) {
  for (int i = 0; i < 500; ++i) {
    ++stamps_[0].progress, ++stamps_[1].progress;
    ASSERT_TRUE(look().empty());
  }
  EXPECT_EQ(asked_, 0);
}

TEST_F(RankWatchTest, a_stopped_rank_is_frozen_within_half_a_second) {
  look();
  beats_[1] = false;
  kernel_[pid(1)].stopped = true;
  const auto found = wait(milliseconds(500));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first.kind, Kind::frozen);
  EXPECT_EQ(found->first.rank, 1U);
  EXPECT_LE(found->second, milliseconds(450));
}

TEST_F(RankWatchTest, a_short_stop_is_forgiven) {
  look();
  for (int round = 0; round < 20; ++round) {
    beats_[1] = false, kernel_[pid(1)].stopped = true;
    ASSERT_FALSE(wait(milliseconds(200)));
    beats_[1] = true, kernel_[pid(1)].stopped = false;
    ASSERT_FALSE(wait(milliseconds(40)));
  }
}

TEST_F(RankWatchTest, a_rank_that_gets_no_processor_is_not_dead) {
  look();
  enter(0, 7);
  enter(1, 6), stamps_[1].left = 6;
  beats_[1] = false;  // not even its heart
  kernel_[pid(1)].runnable = true;
  EXPECT_FALSE(wait(milliseconds(60'000)));
  EXPECT_GT(asked_, 100);
}

TEST_F(RankWatchTest, a_rank_that_waits_for_the_disk_is_not_dead) {
  look();
  stamps_[0].in_flight = stamps_[1].in_flight = 1;
  kernel_[pid(0)].on_disk = kernel_[pid(1)].on_disk = true;
  EXPECT_FALSE(wait(milliseconds(60'000)));
}

TEST_F(RankWatchTest, who_sleeps_while_peers_wait_in_a_collective_is_stuck_and_they_are_not) {
  look();
  enter(0, 7);
  enter(1, 6), stamps_[1].left = 6;
  const auto found = wait(milliseconds(600));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first.kind, Kind::stuck);
  EXPECT_EQ(found->first.rank, 1U);
  EXPECT_LE(found->second, milliseconds(500));
}

TEST_F(RankWatchTest, a_loop_is_found_by_the_processor_time_it_burns) {
  for (int i = 0; i < 100; ++i) stamps_[0].step_done(5'000'000, 8);
  stamps_[0].tokens = 8;
  look();
  stamps_[0].in_flight = 1;
  kernel_[pid(0)].runnable = true;
  std::optional<RankWatch::Verdict> verdict;
  int looks = 0;
  for (; looks < 100 && !verdict; ++looks) {
    kernel_[pid(0)].cpu_ms += 20;
    if (auto found = look(); !found.empty()) verdict = found[0];
  }
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->kind, Kind::stuck);
  EXPECT_GE(looks * 20, 320);
  EXPECT_LE(looks * 20, 600);
}

TEST_F(RankWatchTest, a_step_larger_than_any_before_gets_the_deadline) {
  for (int i = 0; i < 100; ++i) stamps_[0].step_done(5'000'000, 8);
  stamps_[0].tokens = 512;
  look();
  stamps_[0].in_flight = 1;
  kernel_[pid(0)].runnable = true;
  for (int i = 0; i < 100; ++i) {
    kernel_[pid(0)].cpu_ms += 20;
    ASSERT_TRUE(look().empty()) << i;
  }
}

TEST_F(RankWatchTest, a_collective_that_nobody_leaves_ends_the_epoch_and_then_whoever_stays_in_it) {
  look();
  enter(0, 7), enter(1, 7);
  auto found = wait(milliseconds(600));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first.kind, Kind::epoch);
  epoch_ = 2;
  stamps_[0].left = 7, stamps_[0].in_flight = 0, stamps_[0].epoch = 2, stamps_[0].entered = 0;
  found = wait(milliseconds(600));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first.kind, Kind::stuck);
  EXPECT_EQ(found->first.rank, 1U);
}

TEST_F(RankWatchTest, a_peer_that_enters_a_collective_and_gets_no_processor_in_it_ends_nothing) {
  look();
  enter(0, 7), enter(1, 7);
  kernel_[pid(1)].runnable = true;
  EXPECT_FALSE(wait(milliseconds(60'000)));
}

TEST_F(RankWatchTest, a_plan_that_waits_for_a_processor_is_not_lost) {
  look();
  enter(0, 7);
  kernel_[pid(1)].runnable = true;
  EXPECT_FALSE(wait(milliseconds(60'000)));
}

TEST_F(RankWatchTest, a_plan_that_never_came_ends_the_epoch_and_kills_nobody) {
  look();
  enter(0, 7);  // rank 1 is well, and has nothing to do
  const auto found = wait(milliseconds(2000));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first.kind, Kind::epoch);
  EXPECT_GE(found->second, milliseconds(1000));
}

TEST_F(RankWatchTest, time_in_which_the_watcher_itself_did_not_run_counts_for_nobody) {
  look();
  beats_[0] = beats_[1] = false;
  stamps_[0].in_flight = 1;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(look(std::chrono::seconds(100)).empty()) << i;
}

TEST_F(RankWatchTest, coarse_progress_is_given_twenty_times_the_slowest_hundredth) {
  WatchLimits limits;
  limits.coarse = true;
  use(limits);
  for (int i = 0; i < 1000; ++i) stamps_[0].step_done(50'000'000, 8);
  stamps_[0].tokens = 8;
  EXPECT_GE(watch_->patience(stamps_[0]), milliseconds(1000));
  EXPECT_LE(watch_->patience(stamps_[0]), milliseconds(1250));
  stamps_[0].tokens = 9;
  EXPECT_EQ(watch_->patience(stamps_[0]), limits.deadline);
}

TEST_F(RankWatchTest, a_process_that_replaced_another_starts_with_a_clean_slate) {
  look();
  beats_[1] = false, kernel_[pid(1)].stopped = true;
  ASSERT_FALSE(wait(milliseconds(240)));
  const std::vector<RankWatch::Seen> seen{{&stamps_[0], pid(0)}, {&stamps_[1], 777}};
  kernel_[777] = {};
  for (int i = 0; i < 10; ++i) {
    now_ += interval;
    ++stamps_[0].beats, ++stamps_[1].beats;
    EXPECT_TRUE(watch_->look(now_, seen, 1).empty());
  }
}

TEST(ProcessState, reads_lines_whatever_the_name_is) {
  const auto line = read_stat_line("17 (a) b (x) T 1 2 3 4 5 6 7 8 9 10 31 11 0 0 20");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->state, 'T');
  EXPECT_EQ(line->ticks, 42U);
  EXPECT_FALSE(read_stat_line("17 (a"));
  EXPECT_FALSE(read_stat_line("17 (a) R 1 2"));
  EXPECT_FALSE(read_stat_line("17 (a) R 1 2 3 4 5 6 7 8 9 10 x 11 0"));
}

}  // namespace
}  // namespace althing::actors::tests
