// The journal's file: see the header.
#include "actors/journal_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "actors/logging.hpp"
#include "scheduler/journal_effects.hpp"

namespace althing::actors {
namespace {

constexpr std::size_t buffer_bytes_max = 1u << 16;

}  // namespace

JournalFile::JournalFile(std::string path, std::string header, std::uint64_t bytes_max)
    : path_(std::move(path)), header_(std::move(header)), bytes_max_(bytes_max) {}

Result<std::unique_ptr<JournalFile>> JournalFile::open(const std::string& path, std::string header, std::uint64_t bytes_max) {
  std::unique_ptr<JournalFile> journal(new JournalFile(path, std::move(header), bytes_max));
  if (auto status = journal->begin(); !status) return status.error();
  return journal;
}

Status JournalFile::begin() {
  // O_EXCL is not asked for: an old journal of the same name is the previous run's, and rotates away like a full one.
  struct stat info {};
  if (::lstat(path_.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode))
      return Error{ErrorCode::invalid_argument, "the journal " + path_ + " is not a regular file; choose another path", "journal"};
    std::rename(path_.c_str(), (path_ + ".1").c_str());
  }
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_)
    return Error{ErrorCode::io, "cannot write the journal " + path_ + ": " + std::strerror(errno) + "; choose another path with --journal",
                 "journal"};
  buffer_ = header_;
  if (++parts_ > 1) buffer_ += scheduler::to_continued_line(parts_) + '\n';
  bytes_ = 0;
  return Ok{};
}

void JournalFile::append(std::string_view line) {
  if (!file_) return;
  buffer_ += line;
  buffer_ += '\n';
  if (buffer_.size() >= buffer_bytes_max) flush();
}

void JournalFile::flush() {
  if (!file_ || buffer_.empty()) return;
  const ssize_t written = ::write(file_.get(), buffer_.data(), buffer_.size());
  if (written != static_cast<ssize_t>(buffer_.size())) {
    log(LogLevel::error, "journal_off", {{"path", path_}, {"reason", std::strerror(errno)}});
    file_.reset();
    return;
  }
  bytes_ += buffer_.size();
  buffer_.clear();
  if (bytes_ < bytes_max_) return;
  if (auto status = begin(); !status) log(LogLevel::error, "journal_off", {{"reason", status.error().message}});
}

}  // namespace althing::actors
