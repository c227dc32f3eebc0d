// What is over a bound that cannot move is refused with both numbers and the flag to lower; what is not is taken. Bounds are read as the kernel
// writes them, from a folder that stands for / here.
#include "actors/memory_budget.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace althing::actors {
namespace {

constexpr std::uint64_t mib = 1u << 20;

EngineSetup setup_of(std::uint32_t ranks, std::uint64_t kv_mib, std::uint32_t mirror_mib) {
  ServeSettings s;
  s.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
  s.device = "cpu";
  s.ranks = ranks, s.kv_mib = kv_mib, s.kv_mirror_mib = mirror_mib;
  return set_up_engine(s).value();
}

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() { std::filesystem::remove_all(root_); }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_ = testing::TempDir() + "althing-host-memory-" + std::to_string(::getpid());
};

TEST_F(HostMemoryTest, reads_what_is_installed_and_the_lowest_bound_above) {
  write("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:        100 kB\n");
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  write("/sys/fs/cgroup/a/memory.max", "2147483648\n");
  const HostMemory host = HostMemory::read(root_);
  EXPECT_EQ(host.machine, std::uint64_t{24000000} << 10);
  EXPECT_EQ(host.cgroup, std::uint64_t{2147483648});
  write("/sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  EXPECT_EQ(HostMemory::read(root_).cgroup, std::uint64_t{1073741824});
}

TEST_F(HostMemoryTest, reads_the_older_kind_of_groups_too) {
  write("/proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/x\n");
  write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(HostMemory::read(root_).cgroup) << "no limit, as it is written there";
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(HostMemory::read(root_).cgroup, std::uint64_t{536870912}) << "of what is mounted here, though the group itself is not";
}

TEST_F(HostMemoryTest, what_cannot_be_read_bounds_nothing) {
  EXPECT_FALSE(HostMemory::read(root_).machine);
  EXPECT_FALSE(HostMemory::read(root_).cgroup);
  write("/proc/self/cgroup", "rubbish\n::\n");
  write("/proc/meminfo", "MemTotal: much kB\n");
  EXPECT_FALSE(HostMemory::read(root_).machine);
  EXPECT_TRUE(HostMemory::read().machine) << "the control: this machine has a size";
}

TEST(MemoryBudget, all_ranks_together_must_fit_and_the_larger_demand_is_to_be_lowered) {
  const EngineSetup setup = setup_of(2, 300, 100);
  HostMemory host;
  EXPECT_TRUE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own));
  host.machine = 850 * mib;
  EXPECT_TRUE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own)) << "exactly";
  host.machine = 849 * mib;
  const Status status = check_memory(setup, 50, host, RanksLive::in_processes_of_their_own);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::too_large);
  EXPECT_EQ(status.error().field, "kv-mib");
  EXPECT_EQ(status.error().message,
            "2 ranks, each with --kv-mib 300 and --kv-mirror-mib 100, and --token-log-mib 50: that is 850 MiB, and this machine has 849 MiB; "
            "give --kv-mib 299 at most, or use fewer ranks");
  host.machine = 10'000 * mib, host.cgroup = 100 * mib;
  const Status mirror = check_memory(setup_of(1, 8, 120), 0, host, RanksLive::in_processes_of_their_own);
  ASSERT_FALSE(mirror);
  EXPECT_EQ(mirror.error().field, "kv-mirror-mib");
  EXPECT_NE(mirror.error().message.find("control group (memory.max) allows 100 MiB; give --kv-mirror-mib 92 at most"), std::string::npos)
      << mirror.error().message;
}

TEST(MemoryBudget, limits_of_a_process_bound_a_rank_or_all_of_them_in_one) {
  const EngineSetup setup = setup_of(2, 300, 100);
  HostMemory host;
  host.address_space = 400 * mib;
  EXPECT_TRUE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own));
  EXPECT_FALSE(check_memory(setup, 50, host, RanksLive::in_one_process));
  host.address_space = 399 * mib;
  EXPECT_FALSE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own));
  host.address_space.reset();
  host.data = 300 * mib;
  EXPECT_TRUE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own)) << "shared memory does not count";
  host.data = 299 * mib;
  EXPECT_FALSE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own));
}

// No GPU is needed to compare two numbers.
TEST(MemoryBudget, on_gpus_the_cache_is_held_against_the_gpu) {
  EngineSetup setup = setup_of(1, 300, 0);
  setup.device = gpu::Device::cuda;
  HostMemory host;
  host.machine = 200 * mib, host.gpu = 300 * mib;
  EXPECT_TRUE(check_memory(setup, 50, host, RanksLive::in_processes_of_their_own)) << "it is not in the machine's memory";
  host.gpu = 299 * mib;
  const Status status = check_memory(setup, 50, host, RanksLive::in_processes_of_their_own);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "1 rank with --kv-mib 300: that is 300 MiB, and its GPU has 299 MiB; give --kv-mib 299 at most");
}

}  // namespace
}  // namespace althing::actors
