// See the header.
#include "protocol/curve/key_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace althing::protocol::curve {
namespace {

constexpr std::size_t key_file_bytes_max = 512;
constexpr std::string_view secret_word = "secret ";

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// As it may stand in an error.
std::string shown(const std::string& path) { return looks_like_key(path) ? "given (a key, where a file's name belongs)" : path; }

struct Kind {
  const char* what;
  mode_t forbidden;  // bits of the mode
  const char* remedy;
  bool root_may_own;
};
constexpr Kind secret_kind{"secret key file", 0077, "only its owner may read it: chmod 600", false};
constexpr Kind public_kind{"public key file", 0022, "only its owner may write it: chmod go-w", true};
constexpr Kind list_kind{"allow-list", 0022, "only its owner may write it: chmod go-w", true};

// NONBLOCK, because opening a pipe would wait for its writer.
Result<File> open_checked(const std::string& path, const Kind& kind, int flags = O_RDONLY) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error{code, std::string("the ") + kind.what + " " + shown(path) + " " + why, "key"};
  };
  File file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (file.get() < 0 && errno == ENOENT)
    return refuse(ErrorCode::not_found, "does not exist; `althing keys new` makes keys, `althing keys allow` lists");
  if (file.get() < 0 && errno == ELOOP) return refuse(ErrorCode::invalid_argument, "is a symbolic link; name the file itself");
  if (file.get() < 0) return refuse(ErrorCode::io, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return refuse(ErrorCode::io, std::string("cannot be looked at: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return refuse(ErrorCode::invalid_argument, "is not a regular file; name one");
  if (info.st_uid != ::geteuid() && !(kind.root_may_own && info.st_uid == 0))
    return refuse(ErrorCode::invalid_argument, "belongs to user " + std::to_string(info.st_uid) + " and not to the one who runs this, " +
                                                   std::to_string(::geteuid()) + "; chown it, or use a key of your own");
  if ((info.st_mode & kind.forbidden) != 0) {
    std::array<char, 16> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(info.st_mode & 07777u));
    return refuse(ErrorCode::invalid_argument, std::string("has mode ") + mode.data() + ", and " + kind.remedy + " " + shown(path));
  }
  return file;
}

Result<std::size_t> read_all(const File& file, char* to, std::size_t bytes_max) {
  std::size_t size = 0;
  while (size < bytes_max) {
    const ssize_t got = ::pread(file.get(), to + size, bytes_max - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::io, std::string("a key file cannot be read: ") + std::strerror(errno), "key"};
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  return size;
}

Result<std::string> read_text(const File& file, const std::string& path, std::size_t bytes_max) {
  std::string text(bytes_max + 1, '\0');
  const auto size = read_all(file, text.data(), text.size());
  if (!size) return size.error();
  if (*size > bytes_max)
    return Error{ErrorCode::too_large, shown(path) + " is longer than " + std::to_string(bytes_max) + " bytes, which is the limit", "key"};
  text.resize(*size);
  return text;
}

// The one line of a key file that is no comment.
std::string_view line_of(std::string_view text) {
  while (text.starts_with('#')) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

Status write_new(const std::string& path, mode_t mode, std::string_view text) {
  const auto refuse = [&](int error) -> Status {
    std::string why = "cannot write " + path + ": " + std::strerror(error);
    if (error == EEXIST) why += "; a key is never written over: choose another name, or move the old one away";
    return Error{ErrorCode::io, why, "file"};
  };
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (file.get() < 0) return refuse(errno);
  // Whatever the umask adds or takes.
  const bool written = ::fchmod(file.get(), mode) == 0 && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(file.get()) == 0;
  if (written) return Ok{};
  const int error = errno;
  ::unlink(path.c_str());
  return refuse(error);
}

// The list, opened and locked; another who edits it replaces the file, and then the lock that we waited for is that of a file that is gone.
Result<File> open_locked(const std::string& path, bool make) {
  while (true) {
    auto file = open_checked(path, list_kind, make ? O_RDWR | O_CREAT : O_RDWR);
    if (!file) return file;
    while (::flock(file->get(), LOCK_EX) != 0)
      if (errno != EINTR) return Error{ErrorCode::io, "cannot lock " + path + ": " + std::strerror(errno), "list"};
    struct stat ours {
    }, there{};
    if (::fstat(file->get(), &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
      return file;
  }
}

}  // namespace

Result<SecretKey> read_secret_key(const std::string& path) {
  auto file = open_checked(path, secret_kind);
  if (!file) return file.error();
  std::array<char, key_file_bytes_max> bytes{};
  const auto size = read_all(*file, bytes.data(), bytes.size());
  if (!size) return size.error();
  const std::string_view line = line_of({bytes.data(), *size});
  Result<SecretKey> key = line.starts_with(secret_word) ? SecretKey::of(line.substr(secret_word.size()))
                                                        : Result<SecretKey>(Error{ErrorCode::invalid_argument, "no line with a secret key", ""});
  explicit_bzero(bytes.data(), bytes.size());
  if (!key) return Error{key.error().code, "the secret key file " + shown(path) + " is none: " + key.error().message, "key"};
  return key;
}

Result<KeyEntry> read_public_key(const std::string& path) {
  auto file = open_checked(path, public_kind);
  if (!file) return file.error();
  auto text = read_text(*file, path, key_file_bytes_max);
  if (!text) return text.error();
  const std::string_view line = line_of(*text);
  // Whoever names the secret file here must not have it sent anywhere.
  if (line.starts_with(secret_word))
    return Error{ErrorCode::invalid_argument, shown(path) + " holds a secret key; name the .pub file that was made with it", "key"};
  auto entry = entry_of(line);
  if (!entry) return Error{entry.error().code, "the public key file " + shown(path) + " is none: " + entry.error().message, "key"};
  return entry;
}

Result<PublicKey> public_key_from(const std::string& path_or_key) {
  if (looks_like_key(path_or_key)) return public_key_of(path_or_key);
  auto entry = read_public_key(path_or_key);
  if (!entry) return entry.error();
  return entry->key;
}

Result<std::string> read_allow_list(const std::string& path) {
  auto file = open_checked(path, list_kind);
  if (!file) return file.error();
  return read_text(*file, path, allow_list_bytes_max);
}

Status write_key_pair(const std::string& path, const KeyPair& pair, Role role, const std::string& name) {
  if (!is_name(name)) return Error{ErrorCode::invalid_argument, "a key's name has 1 to 64 of A-Z a-z 0-9 . _ -, and its file ends with it", "file"};
  const std::string_view head = "# Althing secret key: whoever can read this can speak as its owner.\n";
  std::array<char, key_file_bytes_max> bytes{};
  const int size = std::snprintf(bytes.data(), bytes.size(), "%s%s%s\n", head.data(), secret_word.data(), pair.secret.text());
  Status status = write_new(path + ".key", 0600, {bytes.data(), static_cast<std::size_t>(size)});
  explicit_bzero(bytes.data(), bytes.size());
  if (!status) return status;
  status = write_new(path + ".pub", 0644,
                     "# Althing public key: anybody may have it. `althing keys allow` puts this line into a list.\n" +
                         to_line({role, name, pair.public_key, ""}) + "\n");
  if (!status) ::unlink((path + ".key").c_str());
  return status;
}

Status edit_allow_list(const std::string& path, bool make, const std::function<Result<std::string>(std::string_view)>& edit) {
  auto file = open_locked(path, make);
  if (!file) return file.error();
  auto text = read_text(*file, path, allow_list_bytes_max);
  if (!text) return text.error();
  auto edited = edit(*text);
  if (!edited) return Error{edited.error().code, path + ": " + edited.error().message, "list"};
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return Error{ErrorCode::io, "cannot look at " + path + ": " + std::strerror(errno), "list"};
  const std::string aside = path + ".tmp" + std::to_string(::getpid());
  if (auto status = write_new(aside, info.st_mode & 0777u, *edited); !status) return status;
  if (::rename(aside.c_str(), path.c_str()) == 0) return Ok{};
  const Error error{ErrorCode::io, "cannot replace " + path + ": " + std::strerror(errno), "list"};
  ::unlink(aside.c_str());
  return error;
}

}  // namespace althing::protocol::curve
