// A regular file mapped read-only. The path's symlinks are resolved once, the resolved path is opened with O_NOFOLLOW, and the descriptor that was
// checked is the one that is mapped, so what was checked cannot be swapped for another file.
// Replacing the file by rename leaves the mapping on the old contents. Shrinking it in place cannot be prevented: reads of mapped pages past the
// new end raise SIGBUS, while read() reports it as an error; unchanged() tells whether size or modification time moved since open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

class MappedFile {
 public:
  // Errors: not_found, io; corrupt (not a regular file, empty).
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // The path as the caller gave it, printable.
  const std::string& name() const { return name_; }
  // Fills `out` from `offset` through the descriptor, not the mapping: a vanished or unreadable byte is an io error naming it.
  Status read(std::uint64_t offset, std::span<std::byte> out) const;
  Status unchanged() const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  std::string name_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t modified_ns_ = 0;
};

// The whole text of a small file (a config, an index), opened with the same care. too_large over `bytes_max`.
Result<std::string> read_small_file(const std::filesystem::path& path, std::uint64_t bytes_max);

}  // namespace althing::gpu
