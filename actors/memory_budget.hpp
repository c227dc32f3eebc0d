// Whether the memory that settings ask for can be there at all. KV cache and mirror are taken page by page as they fill, so a server that asks for
// more than the machine has would start, serve, and be killed by the kernel some hours later; it is refused here, before any rank is started.
// Invariant: what is refused is over a bound that no waiting changes (the machine's memory, a cgroup, a resource limit), never over what happens to
// be free at the moment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/engine_setup.hpp"

namespace althing::actors {

// The bounds of a host, in bytes; none: there is no such bound, or it cannot be read.
struct HostMemory {
  std::optional<std::uint64_t> machine;        // installed
  std::optional<std::uint64_t> cgroup;         // of all processes here together: the lowest on the way to the root
  std::optional<std::uint64_t> address_space;  // of one process: ulimit -v
  std::optional<std::uint64_t> data;           // likewise, memory of its own: ulimit -d
  std::optional<std::uint64_t> gpu;            // the smallest of the GPUs that ranks take

  // `root` is where /proc and /sys are, for tests. Never fails: a bound that cannot be read bounds nothing.
  static HostMemory read(const std::string& root = "");
};

enum class RanksLive : std::uint8_t { in_processes_of_their_own, in_one_process };

// What the settings ask of the host for the setup: KV cache and mirror of every rank, and the token log. Errors: too_large, with what is asked, what
// there is, and the flag to lower.
Status check_memory(const EngineSetup& setup, std::uint32_t token_log_mib, const HostMemory& host, RanksLive live);

// As above against this machine and its GPUs.
Status check_memory_here(const EngineSetup& setup, std::uint32_t token_log_mib, RanksLive live);

}  // namespace althing::actors
