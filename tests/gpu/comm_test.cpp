// The communicators: sums in rank order with equal bits everywhere, any length, threads and processes, and no wait that outlives an abort.
#include "gpu/comm/shared_memory_communicator.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "gpu/comm/segment_layout.hpp"
#include "gpu/comm/solo_communicator.hpp"

namespace althing::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a peer may take on a machine that is busy with other work; nothing waits this long unless something is broken.
constexpr milliseconds patience{300'000};

void on_ranks(SharedSegment& segment, const std::function<void(Communicator&)>& body, milliseconds wait_max = patience) {
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < segment.world(); ++r) {
    threads.emplace_back([&, r] {
      auto communicator = segment.join(RankId{r}, wait_max);
      ASSERT_NE(communicator, nullptr);
      body(*communicator);
    });
  }
  for (auto& thread : threads) thread.join();
}

std::vector<float> numbers(std::uint32_t rank, std::size_t size) {
  std::mt19937 random(rank * 7919 + 1);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random) * std::exp2(static_cast<float>(random() % 20));
  return values;
}

std::vector<float> rank_order_sum(std::uint32_t world, std::size_t size) {
  std::vector<float> sum = numbers(0, size);
  for (std::uint32_t r = 1; r < world; ++r) {
    const auto theirs = numbers(r, size);
    for (std::size_t i = 0; i < size; ++i) sum[i] += theirs[i];
  }
  return sum;
}

TEST(Comm, float_sums_are_rank_order_sums_on_every_rank_at_any_length) {
  for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
    auto segment = SharedSegment::create(world, EpochId{3});
    ASSERT_TRUE(segment.ok());
    on_ranks(*segment, [&](Communicator& c) {
      EXPECT_EQ(c.epoch(), EpochId{3});
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{70'001}, std::size_t{3}, std::size_t{300'000}}) {
        auto values = numbers(c.rank().value, size);
        ASSERT_TRUE(c.all_reduce_sum(std::span<float>(values)));
        const auto expected = rank_order_sum(world, size);
        ASSERT_TRUE(size == 0 || std::memcmp(values.data(), expected.data(), size * sizeof(float)) == 0) << world << " ranks, " << size << " values";
      }
    });
  }
}

TEST(Comm, integer_sums_are_exact_and_wrap) {
  auto segment = SharedSegment::create(3, EpochId{1});
  ASSERT_TRUE(segment.ok());
  on_ranks(*segment, [&](Communicator& c) {
    std::vector<std::int64_t> values(50'000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) * (std::int64_t{1} << 40) + c.rank().value;
    values[7] = INT64_MAX;
    ASSERT_TRUE(c.all_reduce_sum(std::span<std::int64_t>(values)));
    EXPECT_EQ(values[5], 3 * 5 * (std::int64_t{1} << 40) + 3);
    EXPECT_EQ(values[49'999], 3 * 49'999 * (std::int64_t{1} << 40) + 3);
    EXPECT_EQ(static_cast<std::uint64_t>(values[7]), 3 * static_cast<std::uint64_t>(INT64_MAX));
  });
}

TEST(Comm, gathers_concatenate_in_rank_order_with_uneven_and_empty_parts) {
  auto segment = SharedSegment::create(4, EpochId{1});
  ASSERT_TRUE(segment.ok());
  const std::vector<std::uint32_t> counts{100'000, 0, 3, 65'537};
  on_ranks(*segment, [&](Communicator& c) {
    for (int round = 0; round < 3; ++round) {
      const auto mine = numbers(c.rank().value, counts[c.rank().value]);
      std::vector<float> all(165'540);
      ASSERT_TRUE(c.all_gather(mine, counts, all));
      std::size_t at = 0;
      for (std::uint32_t r = 0; r < 4; at += counts[r++]) {
        const auto theirs = numbers(r, counts[r]);
        ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(), all.begin() + static_cast<std::ptrdiff_t>(at))) << "part " << r;
      }
    }
  });
}

TEST(Comm, gathered_sums_are_each_group_s_in_rank_order) {
  auto segment = SharedSegment::create(4, EpochId{1});
  ASSERT_TRUE(segment.ok());
  // Longer than a buffer, empty, and short parts.
  const std::vector<std::vector<std::uint32_t>> cases{{70'001}, {100'000, 3}, {0, 65'537}, {0, 0}, {7, 0, 65'536, 1}};
  on_ranks(*segment, [&](Communicator& c) {
    for (const auto& counts : cases) {
      const auto groups = static_cast<std::uint32_t>(counts.size());
      const std::uint32_t size = 4 / groups;
      const auto mine = numbers(c.rank().value, counts[c.rank().value / size]);
      std::vector<float> all, expected;
      for (std::uint32_t g = 0; g < groups; ++g) {
        std::vector<float> sum = numbers(g * size, counts[g]);
        for (std::uint32_t r = g * size + 1; r < (g + 1) * size; ++r) {
          const auto theirs = numbers(r, counts[g]);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
        }
        expected.insert(expected.end(), sum.begin(), sum.end());
      }
      all.resize(expected.size());
      ASSERT_TRUE(c.all_gather_sums(mine, size, counts, all));
      ASSERT_TRUE(expected.empty() || std::memcmp(all.data(), expected.data(), expected.size() * sizeof(float)) == 0) << groups << " groups";
    }
  });
}

TEST(Comm, a_group_of_one_rank_keeps_the_sign_of_zero) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  on_ranks(*segment, [&](Communicator& c) {
    const std::vector<float> mine{-0.0F, 0.0F};
    std::vector<float> all(4);
    ASSERT_TRUE(c.all_gather_sums(mine, 1, std::vector<std::uint32_t>{2, 2}, all));
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(std::signbit(all[i]), i % 2 == 0) << i;
  });
}

TEST(Comm, ranks_that_disagree_about_groups_all_fail) {
  for (const bool impossible : {false, true}) {
    auto segment = SharedSegment::create(2, EpochId{1});
    ASSERT_TRUE(segment.ok());
    on_ranks(*segment, [&](Communicator& c) {
      const bool alone = c.rank().value == 0;
      const std::vector<float> mine(4);
      std::vector<float> all(8);
      const std::vector<std::uint32_t> each{4, 4}, both{4};
      EXPECT_FALSE(impossible ? c.all_gather_sums(mine, 3, each, all)
                   : alone    ? c.all_gather_sums(mine, 1, each, all)
                              : c.all_gather_sums(std::vector<float>(8), 2, std::vector<std::uint32_t>{8}, all));
      EXPECT_FALSE(c.barrier());
    });
  }
}

TEST(Comm, many_mixed_calls_stay_in_step) {
  auto segment = SharedSegment::create(3, EpochId{1});
  ASSERT_TRUE(segment.ok());
  on_ranks(*segment, [&](Communicator& c) {
    std::mt19937 random(11);  // the same on every rank: the calls must agree
    for (int i = 0; i < 400; ++i) {
      const std::size_t size = random() % 3 == 0 ? random() % 20'000 : random() % 64;
      std::vector<float> values(size, static_cast<float>(c.rank().value + 1));
      ASSERT_TRUE(c.all_reduce_sum(std::span<float>(values)));
      for (const float value : values) ASSERT_EQ(value, 6.0F);
      if (i % 5 == 0) {
        ASSERT_TRUE(c.barrier());
      }
    }
  });
}

TEST(Comm, ranks_that_call_different_things_all_fail) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  on_ranks(*segment, [&](Communicator& c) {
    std::vector<float> values(c.rank().value == 0 ? 10 : 11);
    EXPECT_FALSE(c.all_reduce_sum(std::span<float>(values)));
    EXPECT_FALSE(c.barrier());
  });
  EXPECT_TRUE(segment->aborted());
}

// What ranks have written: everything behind the header.
std::string said_in(const SharedSegment& segment) {
  std::string bytes(SegmentLayout{segment.world()}.bytes() - segment_page, '\0');
  EXPECT_EQ(pread(segment.descriptor(), bytes.data(), bytes.size(), segment_page), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

TEST(Comm, a_rank_that_gave_up_writes_nothing_over_what_others_still_compare) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  on_ranks(*segment, [&](Communicator& c) {
    std::vector<float> values(c.rank().value == 0 ? 10 : 11, 1.0F);
    EXPECT_FALSE(c.all_reduce_sum(std::span<float>(values)));
    const std::string said = said_in(*segment);
    std::vector<float> again(10, 2.0F), all(20);
    const std::vector<std::uint32_t> each{10, 10};
    EXPECT_FALSE(c.all_reduce_sum(std::span<float>(again)));
    EXPECT_FALSE(c.all_gather(again, each, all));
    EXPECT_FALSE(c.barrier());
    EXPECT_TRUE(said_in(*segment) == said);
  });
}

TEST(Comm, a_gather_with_wrong_sizes_ends_the_epoch) {
  auto segment = SharedSegment::create(1, EpochId{1});
  ASSERT_TRUE(segment.ok());
  auto c = segment->join(RankId{0}, milliseconds{1000});
  std::vector<float> mine(4), all(5);
  const std::vector<std::uint32_t> counts{4};
  EXPECT_FALSE(c->all_gather(mine, counts, all));
  EXPECT_TRUE(segment->aborted());
  EXPECT_FALSE(solo_communicator(EpochId{1})->all_gather(mine, counts, all));
}

TEST(Comm, a_missing_peer_ends_the_wait_at_its_limit_and_for_all) {
  auto segment = SharedSegment::create(3, EpochId{1});
  ASSERT_TRUE(segment.ok());
  auto first = segment->join(RankId{0}, milliseconds{60});
  auto second = segment->join(RankId{1}, patience * 2);
  const auto start = Clock::now();
  std::thread patient([&] { EXPECT_FALSE(second->barrier()); });
  EXPECT_FALSE(first->barrier());
  patient.join();
  const auto took = Clock::now() - start;
  EXPECT_GE(took, milliseconds{60});
  EXPECT_LT(took, patience);
}

TEST(Comm, abort_wakes_a_sleeper_and_the_segment_is_never_used_again) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  auto waiting = segment->join(RankId{0}, patience * 2);
  std::atomic<bool> entered{false};
  std::thread sleeper([&] {
    entered = true;
    EXPECT_FALSE(waiting->barrier());
  });
  while (!entered) std::this_thread::yield();
  const auto start = Clock::now();
  segment->abort();
  sleeper.join();
  EXPECT_LT(Clock::now() - start, patience);
  EXPECT_FALSE(waiting->barrier());
  auto late = segment->join(RankId{1}, patience * 2);
  ASSERT_NE(late, nullptr);
  std::vector<float> values(3);
  EXPECT_FALSE(late->all_reduce_sum(std::span<float>(values)));
}

TEST(Comm, a_rank_joins_once_and_only_inside_the_world) {
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(segment->join(RankId{2}, milliseconds{10}), nullptr);
  EXPECT_NE(segment->join(RankId{1}, milliseconds{10}), nullptr);
  EXPECT_EQ(segment->join(RankId{1}, milliseconds{10}), nullptr);
}

TEST(Comm, communicators_outlive_the_segment_object) {
  std::unique_ptr<Communicator> communicator;
  {
    auto segment = SharedSegment::create(1, EpochId{9});
    ASSERT_TRUE(segment.ok());
    communicator = segment->join(RankId{0}, milliseconds{1000});
  }
  std::vector<float> values{1.0F, 2.0F};
  EXPECT_TRUE(communicator->all_reduce_sum(std::span<float>(values)));
  EXPECT_EQ(values[1], 2.0F);
}

TEST(Segment, refuses_worlds_and_descriptors_that_are_not_segments) {
  EXPECT_FALSE(SharedSegment::create(0, EpochId{1}).ok());
  EXPECT_FALSE(SharedSegment::create(65, EpochId{1}).ok());

  const auto refused = [](int descriptor, const char* why) {
    const auto result = SharedSegment::adopt(descriptor);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::corrupt);
    EXPECT_NE(result.error().message.find(why), std::string::npos) << result.error().message;
  };
  refused(open("/dev/null", O_RDWR | O_CLOEXEC), "not a memfd");
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(0, ftruncate(unsealed, 1 << 22));
  refused(unsealed, "not sealed");
  const int small = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(0, ftruncate(small, 4096));
  ASSERT_EQ(0, fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
  refused(small, "4096 bytes");
  const int empty = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(0, ftruncate(empty, static_cast<off_t>(SegmentLayout{1}.bytes())));
  ASSERT_EQ(0, fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
  refused(empty, "magic");
  // A header whose world does not fit the size: one byte changed by a peer.
  auto segment = SharedSegment::create(2, EpochId{1});
  ASSERT_TRUE(segment.ok());
  const std::uint32_t world = 3;
  ASSERT_EQ(static_cast<ssize_t>(sizeof world), pwrite(segment->descriptor(), &world, sizeof world, offsetof(SegmentHeader, world)));
  refused(dup(segment->descriptor()), "a world of 3 needs");
}

TEST(Segment, is_sealed_against_resizing) {
  auto segment = SharedSegment::create(2, EpochId{5});
  ASSERT_TRUE(segment.ok());
  EXPECT_NE(0, ftruncate(segment->descriptor(), 4096));
  EXPECT_NE(0, ftruncate(segment->descriptor(), 1 << 28));
  auto adopted = SharedSegment::adopt(dup(segment->descriptor()));
  ASSERT_TRUE(adopted.ok());
  EXPECT_EQ(adopted->world(), 2u);
  EXPECT_EQ(adopted->epoch(), EpochId{5});
  adopted->abort();
  EXPECT_TRUE(segment->aborted());
}

// The child runs `body` and exits 0 when it returns true.
pid_t child(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  return pid;
}
int exit_code(pid_t pid) {
  int status = 0;
  EXPECT_EQ(pid, waitpid(pid, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Segment, processes_sum_like_threads) {
  auto segment = SharedSegment::create(3, EpochId{1});
  ASSERT_TRUE(segment.ok());
  const auto expected = rank_order_sum(3, 10'000);
  std::vector<pid_t> children;
  for (std::uint32_t r = 0; r < 3; ++r) {
    children.push_back(child([&] {
      auto adopted = SharedSegment::adopt(dup(segment->descriptor()));  // its own mapping, at another address
      if (!adopted) return false;
      auto c = adopted->join(RankId{r}, patience);
      for (int i = 0; i < 50; ++i) {
        auto values = numbers(r, 10'000);
        if (!c->all_reduce_sum(std::span<float>(values)) || std::memcmp(values.data(), expected.data(), 40'000) != 0) return false;
      }
      return true;
    }));
  }
  for (const pid_t pid : children) EXPECT_EQ(0, exit_code(pid));
}

TEST(Segment, survivors_of_a_kill_return_false_at_once_after_the_abort) {
  auto segment = SharedSegment::create(3, EpochId{1});
  ASSERT_TRUE(segment.ok());
  int ready[2];
  ASSERT_EQ(0, pipe(ready));
  const auto loop = [&](std::uint32_t r) {
    return child([&, r] {
      auto c = segment->join(RankId{r}, patience * 2);
      std::vector<float> values(20'000);
      for (std::uint64_t i = 0; c->all_reduce_sum(std::span<float>(values)); ++i)
        if (i == 20 && write(ready[1], "x", 1) != 1) return false;
      return !c->barrier();
    });
  };
  const pid_t a = loop(0), b = loop(1), victim = loop(2);
  char byte = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(1, read(ready[0], &byte, 1));
  ASSERT_EQ(0, kill(victim, SIGKILL));
  EXPECT_EQ(-SIGKILL, exit_code(victim));
  EXPECT_EQ(0, waitpid(a, nullptr, WNOHANG));  // they wait for the dead one
  EXPECT_EQ(0, waitpid(b, nullptr, WNOHANG));
  const auto start = Clock::now();
  segment->abort();
  EXPECT_EQ(0, exit_code(a));
  EXPECT_EQ(0, exit_code(b));
  EXPECT_LT(Clock::now() - start, patience);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace althing::gpu
