// Where the core's journal is written: a text file for its owner only (0600), capped. A full file becomes FILE.1 (the one before is dropped) and a
// new one begins, which says that it goes on from that one, so a journal never fills a disk. A write that fails turns the journal off and says so
// once; serving goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "actors/control_channel.hpp"

namespace althing::actors {

class JournalFile {
 public:
  // `header` begins every file. `althing replay` takes a journal's files together, from its first one on.
  static Result<std::unique_ptr<JournalFile>> open(const std::string& path, std::string header, std::uint64_t bytes_max = 64u << 20);
  void append(std::string_view line);
  // Call often enough; lines are buffered until then.
  void flush();

 private:
  JournalFile(std::string path, std::string header, std::uint64_t bytes_max);
  Status begin();

  std::string path_;
  std::string header_;
  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  std::uint32_t parts_ = 0;  // files begun
  std::string buffer_;
  Descriptor file_;
};

}  // namespace althing::actors
