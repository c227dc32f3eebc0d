// See the header.
#include "actors/door_keys.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "actors/logging.hpp"
#include "protocol/curve/key_file.hpp"

namespace althing::actors {
namespace curve = protocol::curve;
namespace {

constexpr std::size_t sealed_bytes = 2 * curve::key_text_bytes;

Error io(const char* what) { return {ErrorCode::io, std::string(what) + ": " + std::strerror(errno), "curve-key"}; }

Result<std::shared_ptr<const curve::ClientKeys>> client_keys_of(curve::PublicKey server, std::string_view inside) {
  auto secret = curve::SecretKey::of(inside);
  if (!secret) return secret.error();
  curve::PublicKey own = secret->public_key();
  return std::make_shared<const curve::ClientKeys>(curve::ClientKeys{std::move(server), {std::move(own), std::move(*secret)}});
}

// REQUIRES: both have key_text_bytes.
Result<Descriptor> seal_texts(const char* first, const char* second) {
  std::array<char, sealed_bytes> bytes{};
  std::memcpy(bytes.data(), first, curve::key_text_bytes);
  std::memcpy(bytes.data() + curve::key_text_bytes, second, curve::key_text_bytes);
  Descriptor memory(::memfd_create("althing-door-keys", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool written = memory && ::write(memory.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  explicit_bzero(bytes.data(), bytes.size());
  if (!written || ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return io("cannot keep the server's keys in memory");
  return memory;
}

// What was sealed, for as long as it takes to read it.
class SealedTexts {
 public:
  // From the start each time: the place in a file is shared with whoever inherited it before.
  explicit SealedTexts(const Descriptor& sealed) : size_(::pread(sealed.get(), bytes_.data(), bytes_.size(), 0)) {}
  SealedTexts(const SealedTexts&) = delete;
  SealedTexts& operator=(const SealedTexts&) = delete;
  ~SealedTexts() { explicit_bzero(bytes_.data(), bytes_.size()); }

  bool whole() const { return size_ == static_cast<ssize_t>(bytes_.size()); }
  std::string_view first() const { return {bytes_.data(), curve::key_text_bytes}; }
  std::string_view second() const { return {bytes_.data() + curve::key_text_bytes, curve::key_text_bytes}; }

 private:
  std::array<char, sealed_bytes> bytes_{};
  ssize_t size_;
};

}  // namespace

Result<std::shared_ptr<const curve::ClientKeys>> DoorKeys::client_keys() const { return client_keys_of(server->public_key(), inside->secret.text()); }

curve::KeyEntry DoorKeys::inside_entry() const { return {curve::Role::gateway, "althing", inside->public_key, ""}; }

Result<DoorKeys> make_door_keys(const ServeSettings& settings) {
  const auto with_flag = [](const Error& error, const char* flag) { return Error{error.code, error.message + " (--" + flag + ")", flag}; };
  auto server = curve::read_secret_key(settings.curve_key);
  if (!server) return with_flag(server.error(), "curve-key");
  auto list = read_allow_list(settings.curve_allow);
  if (!list) return with_flag(list.error(), "curve-allow");
  for (const curve::KeyEntry& entry : *list)
    if (entry.key == server->public_key())
      return with_flag({ErrorCode::invalid_argument, settings.curve_allow + " lists the server's own key; each client needs one of its own", ""},
                       "curve-allow");
  auto inside = curve::KeyPair::make();
  if (!inside) return inside.error();
  return DoorKeys{std::make_shared<const curve::SecretKey>(std::move(*server)), std::make_shared<const curve::KeyPair>(std::move(*inside))};
}

Result<Descriptor> seal(const DoorKeys& keys) { return seal_texts(keys.server->text(), keys.inside->secret.text()); }

Result<Descriptor> seal_for_client(const DoorKeys& keys) { return seal_texts(keys.server->public_key().text.c_str(), keys.inside->secret.text()); }

Result<DoorKeys> unseal(const Descriptor& sealed) {
  const SealedTexts texts(sealed);
  if (!texts.whole()) return io("cannot read the server's keys");
  auto server = curve::SecretKey::of(texts.first());
  if (!server) return server.error();
  auto inside = curve::SecretKey::of(texts.second());
  if (!inside) return inside.error();
  curve::PublicKey known = inside->public_key();
  return DoorKeys{std::make_shared<const curve::SecretKey>(std::move(*server)),
                  std::make_shared<const curve::KeyPair>(curve::KeyPair{std::move(known), std::move(*inside)})};
}

Result<std::shared_ptr<const curve::ClientKeys>> unseal_client_keys(const Descriptor& sealed) {
  const SealedTexts texts(sealed);
  if (!texts.whole()) return io("cannot read the keys of a client inside of the server");
  auto server = curve::public_key_of(texts.first());
  if (!server) return server.error();
  return client_keys_of(std::move(*server), texts.second());
}

Result<curve::AllowList> read_allow_list(const std::string& path) {
  auto text = curve::read_allow_list(path);
  if (!text) return text.error();
  auto list = curve::allow_list_of(*text);
  if (!list) return Error{list.error().code, "the allow-list " + path + ": " + list.error().message, "curve-allow"};
  return list;
}

void leave_memory_out_of_core_dumps() {
  // Bit 4 alone: the headers of mapped files, so that a dump still says which programs and libraries it was.
  const std::string_view headers_only = "0x10";
  const Descriptor filter(::open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC));
  if (!filter || ::write(filter.get(), headers_only.data(), headers_only.size()) != static_cast<ssize_t>(headers_only.size()))
    log(LogLevel::warning, "core_dumps_hold_keys", {{"reason", std::strerror(errno)}});
}

}  // namespace althing::actors
