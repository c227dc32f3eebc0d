// One child of the supervisor: exec'ed from its main thread with the control channel and other descriptors at fixed numbers, in a process group of
// its own, killed by the kernel when the supervisor's main thread ends, and watched by a pidfd (so a reused pid is never mistaken for it).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "actors/control_channel.hpp"

namespace althing::actors {

// Where children find what they inherit.
inline constexpr int control_descriptor = 3;
inline constexpr int ca_descriptor = 4;
inline constexpr int certificate_descriptor = 5;
inline constexpr int key_descriptor = 6;
inline constexpr int stamps_descriptor = 7;
inline constexpr int token_log_descriptor = 8;  // the core only
// The core only, where clients need keys: behind the token log, if there is one.
inline constexpr int door_keys_descriptor(bool token_log) { return token_log ? token_log_descriptor + 1 : token_log_descriptor; }
inline constexpr int gateway_keys_descriptor = 4;  // the HTTP gateway only, where clients need keys
inline constexpr int kv_mirror_descriptors = 8;    // ranks only, where there are mirrors: of place 0, and of the others behind it

struct ChildExit {
  bool signalled = false;
  int code = 0;  // exit status, or the signal
};
std::string to_string(const ChildExit& exit);

class ChildProcess {
 public:
  // Runs /proc/self/exe with `arguments`; `inherited` become descriptors 4, 5, … (3 is the control channel).
  // REQUIRES: called from the thread that lives as long as the process (the parent-death signal follows the thread).
  static Result<ChildProcess> start(const std::vector<std::string>& arguments, const std::vector<int>& inherited);
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) noexcept;
  // Kills and reaps what still runs.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  ControlChannel& control() { return control_; }
  void signal(int number) const;
  // Waits for the end and reaps. Call it when pidfd is readable, or after signal(SIGKILL).
  ChildExit reap();
  bool running() const { return pid_ > 0; }

 private:
  ChildProcess(pid_t pid, Descriptor pidfd, ControlChannel control) : pid_(pid), pidfd_(std::move(pidfd)), control_(std::move(control)) {}
  pid_t pid_ = -1;
  Descriptor pidfd_;
  ControlChannel control_;
};

}  // namespace althing::actors
