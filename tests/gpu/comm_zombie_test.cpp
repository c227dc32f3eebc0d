// A rank that was stopped in the middle of a collective, replaced, and then goes on: it comes out of its old epoch with nothing, and the memory of
// the new one has never been within its reach.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "gpu/comm/shared_memory_communicator.hpp"

#include <gtest/gtest.h>

namespace althing::gpu::tests {
namespace {

using std::chrono::milliseconds;

// What the zombie reports, in memory of its own.
struct Report {
  std::atomic<int> entered{0};
  std::atomic<int> came_back{0};
  std::atomic<int> met{-1};
};

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos ? '?' : text[name_end + 2];
}

template <class Condition>
bool soon(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(CommZombie, a_returning_rank_is_fenced_by_its_epoch_and_changes_nothing) {
  auto old_segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(old_segment.ok());
  void* shared = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* report = new (shared) Report;

  const pid_t zombie = ::fork();
  if (zombie == 0) {
    auto communicator = old_segment->join(RankId{1}, milliseconds(600'000));
    std::vector<float> values(100, 1000.0F);
    report->entered = 1;
    bool met = communicator->all_reduce_sum(std::span<float>(values));
    met = communicator->all_reduce_sum(std::span<float>(values)) || met;  // and it tries again
    report->met = met ? 1 : 0;
    report->came_back = 1;
    ::_exit(0);
  }
  ASSERT_TRUE(soon([&] { return report->entered == 1 && state_of(zombie) == 'S'; }));
  ::kill(zombie, SIGSTOP);
  ASSERT_TRUE(soon([&] { return state_of(zombie) == 'T'; }));  // the fault has happened

  // The membership goes on without it, and computes while the zombie wakes up.
  old_segment->abort();
  auto segment = SharedSegment::create(2, EpochId{2});
  ASSERT_TRUE(segment.ok());
  auto zero = segment->join(RankId{0}, milliseconds(60'000)), one = segment->join(RankId{1}, milliseconds(60'000));
  const auto run = [&](Communicator& communicator, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> values(5000, static_cast<float>(communicator.rank().value + 1));
      ASSERT_TRUE(communicator.all_reduce_sum(std::span<float>(values)));
      for (const float value : values) ASSERT_EQ(value, 3.0F);
    }
  };
  std::jthread peer([&] { run(*one, 2000); });
  run(*zero, 500);
  EXPECT_EQ(report->came_back, 0);
  ::kill(zombie, SIGCONT);
  run(*zero, 1500);
  peer.join();
  ASSERT_TRUE(soon([&] { return report->came_back == 1; }));
  EXPECT_EQ(report->met, 0) << "a collective of an epoch that is over was completed";
  int status = 0;
  ASSERT_EQ(::waitpid(zombie, &status, 0), zombie);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_FALSE(segment->aborted()) << "the zombie ended an epoch that is not its own";
  ::munmap(shared, sizeof(Report));
}

// The control: a rank that was stopped and comes back while its epoch lives takes part as if nothing had been.
TEST(CommZombie, a_stop_within_a_living_epoch_costs_nothing_but_time) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  const pid_t peer = ::fork();
  if (peer == 0) {
    auto communicator = segment->join(RankId{1}, milliseconds(600'000));
    std::vector<float> values(100, 2.0F);
    ::_exit(communicator->all_reduce_sum(std::span<float>(values)) && values[99] == 3.0F ? 0 : 1);
  }
  ASSERT_TRUE(soon([&] { return state_of(peer) == 'S'; }));
  ::kill(peer, SIGSTOP);
  ASSERT_TRUE(soon([&] { return state_of(peer) == 'T'; }));
  auto communicator = segment->join(RankId{0}, milliseconds(60'000));
  std::vector<float> values(100, 1.0F);
  EXPECT_TRUE(communicator->all_reduce_sum(std::span<float>(values)));
  EXPECT_EQ(values[0], 3.0F);
  ::kill(peer, SIGCONT);
  int status = 0;
  ASSERT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace althing::gpu::tests
