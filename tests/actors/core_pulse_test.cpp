// The core's page must tell a core of which half hangs from one that goes round, and the watch must act on it.
#include "actors/core_pulse.hpp"

#include <gtest/gtest.h>

#include "actors/rank_watch.hpp"

namespace althing::actors::tests {
namespace {

using std::chrono::milliseconds;

class CorePulseTest : public testing::Test {
 protected:
  // Looks for `time`, every 20 ms, while scheduler and gateway go round as told; the verdicts' texts.
  std::vector<std::string> watch(milliseconds time, bool scheduler, bool gateway) {
    std::vector<std::string> verdicts;
    for (const auto end = now_ + time; now_ < end; now_ += milliseconds(20)) {
      stamps_->beats.fetch_add(1);
      if (gateway) pulse_.gateway_round();
      if (scheduler) pulse_.scheduler_round();
      for (const auto& verdict : watch_.look(now_, {{stamps_.get(), 1}}, 0)) verdicts.push_back(verdict.why);
      state_.cpu_ms += burned_a_look_;
    }
    return verdicts;
  }

  std::shared_ptr<RankStamps> stamps_ = std::make_shared<RankStamps>();
  CorePulse pulse_{stamps_};
  ProcessState state_;
  std::uint64_t burned_a_look_ = 0;
  RankWatch watch_{WatchLimits{.floor = milliseconds(1000), .deadline = milliseconds(10'000)}, [this](pid_t) { return state_; }};
  RankWatch::Clock::time_point now_{};
};

TEST_F(CorePulseTest, a_core_that_still_starts_is_not_judged) { EXPECT_TRUE(watch(milliseconds(20'000), false, false).empty()); }

TEST_F(CorePulseTest, a_core_that_goes_round_is_fine) {
  EXPECT_TRUE(watch(milliseconds(20'000), true, true).empty());
  EXPECT_GT(stamps_->progress, 900u);
}

TEST_F(CorePulseTest, a_hanging_gateway_is_stuck) {
  EXPECT_TRUE(watch(milliseconds(500), true, true).empty());
  EXPECT_TRUE(watch(milliseconds(900), true, false).empty());
  const auto verdicts = watch(milliseconds(400), true, false);
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts[0], "it makes no progress");
}

TEST_F(CorePulseTest, a_hanging_scheduler_is_stuck) {
  EXPECT_TRUE(watch(milliseconds(500), true, true).empty());
  EXPECT_FALSE(watch(milliseconds(1300), false, true).empty());
}

TEST_F(CorePulseTest, a_busy_scheduler_is_given_the_deadline_in_processor_time) {
  EXPECT_TRUE(watch(milliseconds(500), true, true).empty());
  state_.runnable = true;
  burned_a_look_ = 20;
  EXPECT_TRUE(watch(milliseconds(9'000), false, true).empty());
  EXPECT_FALSE(watch(milliseconds(2'000), false, true).empty());
}

TEST_F(CorePulseTest, a_core_without_a_processor_is_not_judged) {
  EXPECT_TRUE(watch(milliseconds(500), true, true).empty());
  state_.runnable = true;
  EXPECT_TRUE(watch(milliseconds(30'000), false, false).empty());
}

}  // namespace
}  // namespace althing::actors::tests
