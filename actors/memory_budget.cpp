// See the header. Both versions of cgroups are read, because containers of either kind are still about.
#include "actors/memory_budget.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "gpu/cuda/device_info.hpp"

namespace althing::actors {
namespace {

constexpr std::uint64_t unlimited_v1 = std::uint64_t{1} << 60;  // version 1 says "no limit" as the largest number of whole pages

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end != text.data() ? std::optional(number) : std::nullopt;
}

void lower(std::optional<std::uint64_t>& bound, std::optional<std::uint64_t> other) {
  if (other) bound = bound ? std::min(*bound, *other) : *other;
}

std::optional<std::uint64_t> installed(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string word; file >> word;)
    if (std::string kib; word == "MemTotal:" && file >> kib) {
      const auto number = number_of(kib);
      return number ? std::optional(*number << 10) : std::nullopt;
    }
  return std::nullopt;
}

// A group is bound by those above it too. Where /proc names a group that is not mounted here, as in some containers, what is mounted counts.
std::optional<std::uint64_t> bound_of_group(const std::string& mount, const std::string& group, const char* file) {
  std::optional<std::uint64_t> bound;
  for (std::filesystem::path path = std::filesystem::path(group).relative_path();; path = path.parent_path()) {
    std::ifstream input(std::filesystem::path(mount) / path / file);
    if (std::string word; input >> word)
      if (const auto number = number_of(word); number && *number < unlimited_v1) lower(bound, number);
    if (path.empty()) return bound;
  }
}

std::optional<std::uint64_t> cgroup_bound(const std::string& root) {
  std::optional<std::uint64_t> bound;
  std::ifstream file(root + "/proc/self/cgroup");
  // "0::/GROUP" is version 2; "7:cpu,memory:/GROUP" is version 1.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,") lower(bound, bound_of_group(root + "/sys/fs/cgroup", group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      lower(bound, bound_of_group(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return bound;
}

std::optional<std::uint64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

struct Demand {
  std::uint64_t ranks = 0, kv_mib = 0, mirror_mib = 0, token_log_mib = 0;  // kv and mirror of each rank
  std::uint64_t total() const { return ranks * (kv_mib + mirror_mib) + token_log_mib; }

  std::string text() const {
    if (kv_mib + mirror_mib == 0) return "--token-log-mib " + std::to_string(token_log_mib);
    std::string parts = std::to_string(ranks) + (ranks == 1 ? " rank with" : " ranks, each with");
    if (kv_mib > 0) parts += " --kv-mib " + std::to_string(kv_mib);
    if (mirror_mib > 0) parts += std::string(kv_mib > 0 ? " and" : "") + " --kv-mirror-mib " + std::to_string(mirror_mib);
    if (token_log_mib > 0) parts += ", and --token-log-mib " + std::to_string(token_log_mib);
    return parts;
  }
};

Status fits(const Demand& asked, std::optional<std::uint64_t> bytes, const std::string& whose) {
  if (!bytes || asked.total() <= *bytes >> 20) return Ok{};
  const std::uint64_t mib = *bytes >> 20;
  // The larger of the two is the one that was meant to be large, and the one that helps.
  const bool kv = asked.kv_mib >= asked.mirror_mib;
  const std::uint64_t others = asked.token_log_mib + asked.ranks * (kv ? asked.mirror_mib : asked.kv_mib);
  const std::uint64_t most = mib > others ? (mib - others) / asked.ranks : 0;
  const std::string flag = kv ? "kv-mib" : "kv-mirror-mib";
  return Error{ErrorCode::too_large,
               asked.text() + ": that is " + std::to_string(asked.total()) + " MiB, and " + whose + " " + std::to_string(mib) + " MiB; " +
                   (most > 0 ? "give --" + flag + " " + std::to_string(most) + " at most" : "lower them all") +
                   (asked.ranks > 1 ? ", or use fewer ranks" : ""),
               flag};
}

}  // namespace

HostMemory HostMemory::read(const std::string& root) {
  HostMemory host;
  host.machine = installed(root);
  host.cgroup = cgroup_bound(root);
  host.address_space = limit_of(RLIMIT_AS);
  host.data = limit_of(RLIMIT_DATA);
  return host;
}

Status check_memory(const EngineSetup& setup, std::uint32_t token_log_mib, const HostMemory& host, RanksLive live) {
  // Pages of a GPU are not in the host's memory, and those of an engine that computes nothing are only names.
  const bool on_gpu = setup.device == gpu::Device::cuda, on_host = setup.device == gpu::Device::cpu;
  const Demand all{setup.placements.size(), on_host ? setup.kv_mib : 0, setup.kv_mirror_mib, token_log_mib};
  if (auto status = fits({1, on_gpu ? setup.kv_mib : 0, 0, 0}, host.gpu, "its GPU has"); !status) return status;
  if (auto status = fits(all, host.machine, "this machine has"); !status) return status;
  if (auto status = fits(all, host.cgroup, "this process's control group (memory.max) allows"); !status) return status;
  // Each process maps what it uses: a rank its own, one process that is all of them everything.
  Demand one = all;
  if (live == RanksLive::in_processes_of_their_own) one.ranks = 1, one.token_log_mib = 0;
  if (auto status = fits(one, host.address_space, "the limit on a process's address space (ulimit -v) allows"); !status) return status;
  one.mirror_mib = one.token_log_mib = 0;  // shared memory is no data of its own
  return fits(one, host.data, "the limit on a process's own memory (ulimit -d) allows");
}

Status check_memory_here(const EngineSetup& setup, std::uint32_t token_log_mib, RanksLive live) {
  HostMemory host = HostMemory::read();
  if (setup.device == gpu::Device::cuda) {
    const auto devices = gpu::cuda_devices().devices;
    for (std::size_t r = 0; r < std::min(devices.size(), setup.placements.size()); ++r) lower(host.gpu, devices[r].memory_bytes);
  }
  return check_memory(setup, token_log_mib, host, live);
}

}  // namespace althing::actors
