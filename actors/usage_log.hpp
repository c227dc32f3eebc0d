// The usage log: one JSON line a request that has ended, appended to a file that only its owner may read. A full disk costs lines, never serving, and
// what is in the file is whole lines: one that does not fit is taken back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "actors/control_channel.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

class UsageLog {
 public:
  // Appends to what is there. Errors: invalid_argument (not a regular file), io.
  static Result<std::unique_ptr<UsageLog>> open(const std::string& path);

  // False when the line is lost; the first of several in a row is told in the log.
  bool append(std::string_view line);

 private:
  UsageLog(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Descriptor file_;
  bool failing_ = false;
};

}  // namespace althing::actors
