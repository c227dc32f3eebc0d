// The story of a fault is told once, with causes and times that add up; and the core's part of it: who was interrupted and goes on.
#include "actors/recovery_log.hpp"

#include "actors/resume_watch.hpp"

#include <gtest/gtest.h>

namespace althing::actors::tests {
namespace {

using std::chrono::milliseconds;

RecoveryLog::Clock::time_point at(int ms) { return RecoveryLog::Clock::time_point(milliseconds(100'000 + ms)); }

double phase(const RecoveryLog::Fault& fault, RecoveryPhase which) { return fault.seconds[static_cast<std::size_t>(which)]; }

TEST(RecoveryLog, tells_a_death_once_with_its_phases) {
  RecoveryLog log;
  EXPECT_EQ(log.lost(1, "killed by signal 9", 4, at(0), at(3)), "exit");
  log.announced(RecoveredBy::respawn, at(5));
  log.loaded(at(45));
  log.ready(at(60));
  const auto faults = log.resumed(milliseconds(20), milliseconds(50));
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].rank, 1U);
  EXPECT_EQ(faults[0].epoch, 4U);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::detect), 0.003);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::agree), 0.002);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::weights), 0.040);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::join), 0.015);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::recompute), 0.020);
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::resume), 0.030);
  EXPECT_NEAR(faults[0].total(), 0.110, 1e-12);
  EXPECT_TRUE(log.resumed(milliseconds(1), milliseconds(1)).empty());
}

TEST(RecoveryLog, a_condemned_rank_dies_of_its_verdict_and_another_of_its_own_death) {
  RecoveryLog log;
  log.condemned(0, "frozen", "the process is stopped", at(0));
  EXPECT_EQ(log.lost(1, "killed by signal 9", 1, at(290), at(300)), "exit");
  EXPECT_EQ(log.lost(0, "killed by signal 9", 1, at(299), at(301)), "frozen");
  log.announced(RecoveredBy::respawn, at(310));
  log.ready(at(400));
  const auto faults = log.resumed(milliseconds(0), milliseconds(0));
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[1].how, "the process is stopped");
  EXPECT_DOUBLE_EQ(phase(faults[1], RecoveryPhase::detect), 0.301) << "since it gave no sign any more";
  EXPECT_DOUBLE_EQ(phase(faults[0], RecoveryPhase::detect), 0.010);
}

TEST(RecoveryLog, a_death_during_a_recovery_ends_with_the_same_membership) {
  RecoveryLog log;
  log.lost(0, "x", 1, at(0), at(1));
  log.announced(RecoveredBy::respawn, at(2));
  log.ready(at(50));
  log.lost(1, "y", 2, at(60), at(61));  // before the first token
  EXPECT_TRUE(log.resumed(milliseconds(1), milliseconds(1)).empty()) << "that membership is over";
  log.announced(RecoveredBy::respawn, at(62));
  log.loaded(at(100));
  log.ready(at(110));
  EXPECT_EQ(log.resumed(milliseconds(1), milliseconds(2)).size(), 2U);
}

TEST(RecoveryLog, what_recovered_is_what_did_and_not_the_growth_after_it) {
  RecoveryLog log;
  log.lost(0, "x", 1, at(0), at(1));
  log.announced(RecoveredBy::shrink, at(2));
  log.announced(RecoveredBy::epoch, at(3));  // once more
  log.announced(RecoveredBy::grow, at(4));   // before its streams have gone on
  log.ready(at(5));
  const auto faults = log.resumed(milliseconds(1), milliseconds(2));
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].by, RecoveredBy::shrink);
  log.announced(RecoveredBy::grow, at(6));
  log.ready(at(7));
  EXPECT_TRUE(log.resumed(milliseconds(1), milliseconds(2)).empty()) << "growth is no fault";
}

TEST(ResumeWatch, is_done_when_every_interrupted_stream_has_a_token_or_an_end) {
  ResumeWatch watch;
  watch.moved(RequestId{1}, at(0));
  EXPECT_FALSE(watch.take());
  watch.interrupted();
  watch.interrupted(RequestId{1}), watch.interrupted(RequestId{2});
  watch.ready(at(10));
  EXPECT_FALSE(watch.take());
  watch.moved(RequestId{9}, at(12));  // was not there
  watch.moved(RequestId{1}, at(30));
  EXPECT_FALSE(watch.take());
  watch.moved(RequestId{2}, at(35));
  const auto resumed = watch.take();
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->first_token, milliseconds(20));
  EXPECT_EQ(resumed->last_token, milliseconds(25));
  EXPECT_EQ(resumed->streams, 2U);
  EXPECT_FALSE(watch.take());
}

TEST(ResumeWatch, a_membership_without_a_loss_before_it_is_done_too) {
  ResumeWatch watch;
  EXPECT_FALSE(watch.take()) << "there is none yet";
  watch.ready(at(10));
  const auto resumed = watch.take();
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->streams, 0U);
  EXPECT_FALSE(watch.take());
}

TEST(ResumeWatch, with_nothing_interrupted_is_done_with_the_membership) {
  ResumeWatch watch;
  watch.interrupted();
  EXPECT_FALSE(watch.take());
  watch.ready(at(10));
  ASSERT_TRUE(watch.take());
  EXPECT_FALSE(watch.take());
}

}  // namespace
}  // namespace althing::actors::tests
