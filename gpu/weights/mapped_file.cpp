// Opens with O_NONBLOCK so that a FIFO in place of a file is refused instead of waited for; fstat on the same descriptor decides.
#include "gpu/weights/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "gpu/weights/message.hpp"

namespace althing::gpu {

namespace {

struct OpenFile {
  int descriptor = -1;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
};

std::int64_t modified_ns(const struct stat& status) { return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec; }

Result<OpenFile> open_regular(const std::filesystem::path& path, const std::string& name) {
  std::error_code failure;
  const std::filesystem::path resolved = std::filesystem::canonical(path, failure);
  if (failure) {
    if (failure != std::errc::no_such_file_or_directory && failure != std::errc::not_a_directory)
      return Error{ErrorCode::io, fmt::format("{}: cannot resolve the path: {}", name, failure.message()), name};
    std::error_code ignored;
    const bool dangling = std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
    return Error{ErrorCode::not_found,
                 fmt::format("{}: {}", name, dangling ? "is a symlink to a file that is not there; download it again" : "no such file"), name};
  }
  OpenFile file;
  file.descriptor = ::open(resolved.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file.descriptor < 0) return Error{ErrorCode::io, fmt::format("{}: cannot open: {}", name, std::strerror(errno)), name};
  struct stat status {};
  if (::fstat(file.descriptor, &status) != 0) {
    const int reason = errno;
    ::close(file.descriptor);
    return Error{ErrorCode::io, fmt::format("{}: cannot read its size: {}", name, std::strerror(reason)), name};
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(file.descriptor);
    return Error{ErrorCode::corrupt, fmt::format("{}: is not a regular file", name), name};
  }
  file.size = static_cast<std::uint64_t>(status.st_size);
  file.modified_ns = modified_ns(status);
  return file;
}

Status read_exactly(int descriptor, const std::string& name, std::uint64_t offset, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::io, fmt::format("{}: reading byte {} failed: {}", name, offset + done, std::strerror(errno)), name};
    if (got == 0)
      return Error{ErrorCode::io,
                   fmt::format("{}: ends at byte {} though byte {} was there when it was opened; it was cut meanwhile", name, offset + done,
                               offset + out.size() - 1),
                   name};
    done += static_cast<std::size_t>(got);
  }
  return Ok{};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  MappedFile file;
  file.path_ = path;
  file.name_ = printable_path(path);
  auto opened = open_regular(path, file.name_);
  if (!opened) return opened.error();
  file.descriptor_ = opened->descriptor;
  file.modified_ns_ = opened->modified_ns;
  if (opened->size == 0) return Error{ErrorCode::corrupt, fmt::format("{}: is empty (0 bytes); download it again", file.name_), file.name_};
  void* address = ::mmap(nullptr, opened->size, PROT_READ, MAP_SHARED, file.descriptor_, 0);
  if (address == MAP_FAILED)
    return Error{ErrorCode::io, fmt::format("{}: cannot map {} bytes: {}", file.name_, opened->size, std::strerror(errno)), file.name_};
  file.data_ = static_cast<const std::byte*>(address);
  file.size_ = opened->size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(name_, other.name_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status MappedFile::read(std::uint64_t offset, std::span<std::byte> out) const { return read_exactly(descriptor_, name_, offset, out); }

Status MappedFile::unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0)
    return Error{ErrorCode::io, fmt::format("{}: cannot read its size: {}", name_, std::strerror(errno)), name_};
  if (static_cast<std::uint64_t>(status.st_size) != size_)
    return Error{ErrorCode::corrupt, fmt::format("{}: had {} bytes when it was opened and has {} now", name_, size_, status.st_size), name_};
  if (modified_ns(status) != modified_ns_) return Error{ErrorCode::corrupt, fmt::format("{}: was written to while it was open", name_), name_};
  return Ok{};
}

Result<std::string> read_small_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
  const std::string name = printable_path(path);
  auto opened = open_regular(path, name);
  if (!opened) return opened.error();
  std::string text;
  Status status = Ok{};
  if (opened->size > bytes_max) {
    status = Error{ErrorCode::too_large, fmt::format("{}: has {} bytes; such a file has at most {}", name, opened->size, bytes_max), name};
  } else {
    text.resize(opened->size);
    status = read_exactly(opened->descriptor, name, 0, std::as_writable_bytes(std::span(text.data(), text.size())));
  }
  ::close(opened->descriptor);
  if (!status) return status.error();
  return text;
}

}  // namespace althing::gpu
