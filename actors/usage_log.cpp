// See the header.
#include "actors/usage_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "actors/logging.hpp"

namespace althing::actors {

Result<std::unique_ptr<UsageLog>> UsageLog::open(const std::string& path) {
  // Not to wait for the reader of a pipe that somebody put there.
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file)
    return Error{ErrorCode::io, "cannot write the usage log " + path + ": " + std::strerror(errno) + "; choose another path with --usage-log",
                 "usage-log"};
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return Error{ErrorCode::invalid_argument, "the usage log " + path + " is not a regular file; choose another path", "usage-log"};
  return std::unique_ptr<UsageLog>(new UsageLog(path, std::move(file)));
}

bool UsageLog::append(std::string_view line) {
  const std::string whole = std::string(line) + '\n';
  struct stat before {};
  const bool sized = ::fstat(file_.get(), &before) == 0;
  errno = 0;
  const ssize_t written = ::write(file_.get(), whole.data(), whole.size());
  const bool ok = written == static_cast<ssize_t>(whole.size());
  const int why = errno;
  // Half a line would make the next one unreadable too.
  if (!ok && written > 0 && sized && ::ftruncate(file_.get(), before.st_size) != 0)
    log(LogLevel::error, "usage_log_torn", {{"path", path_}, {"reason", std::strerror(errno)}});
  if (!ok && !failing_)
    log(LogLevel::error, "usage_log_failing", {{"path", path_}, {"reason", why == 0 ? "no space for a whole line" : std::strerror(why)}});
  if (ok && failing_) log(LogLevel::info, "usage_log_writes_again", {{"path", path_}});
  failing_ = !ok;
  return ok;
}

}  // namespace althing::actors
