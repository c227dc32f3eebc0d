// The page of stamps between a rank and its supervisor: times, the beating heart, which collective a rank is in, and what is no such page.
#include "actors/rank_stamps.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/process_state.hpp"
#include "gpu/comm/shared_memory_communicator.hpp"
#include "gpu/comm/solo_communicator.hpp"

#include <gtest/gtest.h>

namespace althing::actors::tests {
namespace {

using std::chrono::milliseconds;

// Polls; false after five seconds.
template <class Condition>
bool soon(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(StepTimes, a_quantile_is_at_most_a_quarter_too_large) {
  StepTimes times;
  EXPECT_EQ(times.quantile(0.99).count(), 0);
  for (std::uint64_t us = 1; us < 100'000; us = us * 5 / 4 + 1) {
    StepTimes one;
    one.add(us * 1000);
    EXPECT_GE(one.quantile(0.99).count(), static_cast<std::int64_t>(us * 1000));
    EXPECT_LE(one.quantile(0.99).count(), static_cast<std::int64_t>(us * 1250 + 250));
  }
  for (int i = 0; i < 990; ++i) times.add(1'000'000);
  for (int i = 0; i < 10; ++i) times.add(1'000'000'000);
  EXPECT_EQ(times.count(), 1000U);
  EXPECT_LE(times.quantile(0.99).count(), 1'250'000);
  EXPECT_GE(times.quantile(0.995).count(), 1'000'000'000);
  times.add(~std::uint64_t{0});
}

TEST(StampPage, refuses_what_is_no_page) {
  auto page = StampPage::create();
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(StampPage::adopt(Descriptor(::dup(page->descriptor()))).ok());
  EXPECT_EQ(StampPage::adopt(Descriptor(::open("/dev/null", O_RDONLY))).error().code, ErrorCode::corrupt);
  Descriptor loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), sizeof(RankStamps)), 0);
  EXPECT_NE(StampPage::adopt(std::move(loose)).error().message.find("sealed"), std::string::npos);
  page->stamps()->version = 99;
  EXPECT_NE(StampPage::adopt(Descriptor(::dup(page->descriptor()))).error().message.find("99"), std::string::npos);
}

// A real process is stopped, goes on and is killed; what the page and the kernel say of it is what the watch goes by.
TEST(StampPage, a_stopped_process_stops_beating_and_is_seen_stopped) {
  auto page = StampPage::create();
  ASSERT_TRUE(page.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const Heart heart(page->stamps());
    while (true) ::pause();
  }
  const auto beats = [&] { return page->stamps()->beats.load(); };
  ASSERT_TRUE(soon([&] { return beats() > 3; }));
  ::kill(child, SIGSTOP);
  ASSERT_TRUE(soon([&] { return process_state(child) && process_state(child)->stopped; }));
  const std::uint64_t before = beats();
  const std::uint64_t age_before = monotonic_ns() - page->stamps()->beat_ns.load();
  ASSERT_TRUE(soon([&] { return monotonic_ns() - page->stamps()->beat_ns.load() > age_before + 60'000'000; }));
  EXPECT_EQ(beats(), before);
  ::kill(child, SIGCONT);
  EXPECT_TRUE(soon([&] { return beats() > before; }));
  EXPECT_FALSE(process_state(child)->stopped);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(process_state(child));
}

TEST(StampedCommunicator, shows_what_is_entered_and_left_from_zero_in_each_epoch) {
  const auto stamps = std::make_shared<RankStamps>();
  StampedCommunicator first(gpu::solo_communicator(EpochId{1}), stamps);
  std::vector<float> values(3, 1.0F);
  EXPECT_TRUE(first.all_reduce_sum(std::span<float>(values)));
  EXPECT_TRUE(first.barrier());
  EXPECT_EQ(stamps->entered, 2U);
  EXPECT_EQ(stamps->left, 2U);

  auto segment = gpu::SharedSegment::create(2, EpochId{2});
  ASSERT_TRUE(segment.ok());
  StampedCommunicator second(segment->join(RankId{0}, milliseconds(60'000)), stamps);
  EXPECT_EQ(second.epoch(), EpochId{2});
  EXPECT_EQ(stamps->entered, 0U);
  std::jthread waiting([&] { EXPECT_FALSE(second.barrier()); });
  EXPECT_TRUE(soon([&] { return stamps->entered == 1; }));
  EXPECT_EQ(stamps->left, 0U);
  segment->abort();
  waiting.join();
  EXPECT_EQ(stamps->left, 1U);
}

}  // namespace
}  // namespace althing::actors::tests
