// What the kernel says a process is doing, from /proc: the difference between one that was stopped, one that waits, and one that merely got no
// processor. Without it a rank on a busy machine looks like a dead one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace althing::actors {

struct ProcessState {
  bool stopped = false;   // every thread is stopped (SIGSTOP, a debugger)
  bool runnable = false;  // a thread runs, or would if it got a processor
  bool on_disk = false;   // a thread waits in the kernel and cannot be interrupted, as for a page of a file
  std::uint64_t cpu_ms = 0;

  friend bool operator==(const ProcessState&, const ProcessState&) = default;
};

// One line of /proc/PID/stat or /proc/PID/task/TID/stat. nullopt when it is not one.
struct StatLine {
  char state = '?';
  std::uint64_t ticks = 0;  // user and system
};
std::optional<StatLine> read_stat_line(std::string_view text);

// nullopt when the process is gone.
std::optional<ProcessState> process_state(pid_t pid);

}  // namespace althing::actors
