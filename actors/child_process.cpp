// fork + exec by hand, because the parent-death signal, the process group and the descriptor numbers must be set between the two.
#include "actors/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace althing::actors {
namespace {

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(pid_t parent, char* const* argv, std::vector<int>& sources) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  // Two passes, because a source may sit on a number that is a target: first out of the way, to wherever there is room, then into place.
  const int above = control_descriptor + static_cast<int>(sources.size());
  for (int& source : sources)
    if ((source = ::fcntl(source, F_DUPFD_CLOEXEC, above)) < 0) ::_exit(127);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (::dup2(sources[i], control_descriptor + static_cast<int>(i)) < 0) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

std::string to_string(const ChildExit& exit) {
  if (exit.signalled) return "killed by signal " + std::to_string(exit.code) + " (" + ::strsignal(exit.code) + ")";
  return "exit status " + std::to_string(exit.code);
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments, const std::vector<int>& inherited) {
  auto ends = ControlChannel::pair();
  if (!ends) return ends.error();
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<int> sources{ends->second.descriptor()};
  sources.insert(sources.end(), inherited.begin(), inherited.end());

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(parent, argv.data(), sources);
  if (pid < 0) return Error{ErrorCode::io, std::string("cannot start a process: ") + std::strerror(errno), ""};
  ::setpgid(pid, pid);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const std::string why = std::strerror(errno);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return Error{ErrorCode::io, "cannot watch a child process (pidfd_open: " + why + "); Linux 5.3 or newer is needed", ""};
  }
  ::fcntl(pidfd, F_SETFD, FD_CLOEXEC);
  return ChildProcess(pid, Descriptor(pidfd), std::move(ends->first));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), control_(std::move(other.control_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    if (running()) {
      signal(SIGKILL);
      reap();
    }
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    control_ = std::move(other.control_);
  }
  return *this;
}

ChildProcess::~ChildProcess() {
  if (!running()) return;
  signal(SIGKILL);
  reap();
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

ChildExit ChildProcess::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  // The group may hold grandchildren; none of ours makes any, but none may be left either.
  ::kill(-pid_, SIGKILL);
  pid_ = -1;
  if (WIFSIGNALED(status)) return {true, WTERMSIG(status)};
  return {false, WEXITSTATUS(status)};
}

}  // namespace althing::actors
