// See the header.
#include "protocol/curve/key.hpp"

#include <sys/mman.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace althing::protocol::curve {
namespace {

constexpr std::size_t page_bytes = 4096;

// zmq_curve(7) prints their secret halves.
constexpr std::array<std::string_view, 2> example_keys{"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"};
constexpr std::string_view zero_key = "0000000000000000000000000000000000000000";

Error invalid(const char* why) { return {ErrorCode::invalid_argument, why, "key"}; }

}  // namespace

bool looks_like_key(std::string_view text) {
  if (text.size() != key_text_bytes || text.find('\0') != std::string_view::npos) return false;
  // It may be a secret, so no copy stays behind.
  std::array<char, key_text_bytes + 1> copy{};
  std::array<std::uint8_t, key_bytes> bytes{};
  std::copy(text.begin(), text.end(), copy.begin());
  const bool is = zmq_z85_decode(bytes.data(), copy.data()) != nullptr;
  explicit_bzero(copy.data(), copy.size());
  explicit_bzero(bytes.data(), bytes.size());
  return is;
}

Result<PublicKey> public_key_of(std::string_view text) {
  if (!looks_like_key(text)) return invalid("this is no key; a key is 40 characters of Z85, as `althing keys show` prints them");
  if (text == zero_key) return invalid("a key of nothing but zeros protects nobody; make one with `althing keys new`");
  if (std::find(example_keys.begin(), example_keys.end(), text) != example_keys.end())
    return invalid("this key is an example from ZeroMQ's manual, and everybody knows its secret half; make one with `althing keys new`");
  return PublicKey{std::string(text)};
}

PublicKey public_key_of_bytes(std::string_view bytes) {
  std::array<char, key_text_bytes + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(bytes.data()), key_bytes);
  return {std::string(text.data(), key_text_bytes)};
}

Result<SecretKey> SecretKey::empty() {
  void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Error{ErrorCode::io, std::string("no memory for a key: ") + std::strerror(errno), ""};
  SecretKey key(static_cast<char*>(page));
  if (::madvise(page, page_bytes, MADV_DONTDUMP) != 0)
    return Error{ErrorCode::io, std::string("a key cannot be kept out of core dumps: ") + std::strerror(errno), ""};
  // Out of swap too, where the limit on locked memory allows it.
  static_cast<void>(::mlock(page, page_bytes));
  return key;
}

Result<SecretKey> SecretKey::of(std::string_view text) {
  if (!looks_like_key(text)) return invalid("this is no secret key; a key is 40 characters of Z85, as `althing keys new` makes them");
  auto key = empty();
  if (!key) return key.error();
  std::memcpy(key->page_, text.data(), key_text_bytes);
  if (auto known = public_key_of(key->public_key().text); !known) return known.error();
  return key;
}

SecretKey::SecretKey(SecretKey&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  std::swap(page_, other.page_);
  return *this;
}

SecretKey::~SecretKey() {
  if (page_ == nullptr) return;
  explicit_bzero(page_, page_bytes);
  ::munmap(page_, page_bytes);
}

PublicKey SecretKey::public_key() const {
  std::array<char, key_text_bytes + 1> text{};
  zmq_curve_public(text.data(), page_);
  return {std::string(text.data(), key_text_bytes)};
}

Result<KeyPair> KeyPair::make() {
  auto secret = SecretKey::empty();
  if (!secret) return secret.error();
  std::array<char, key_text_bytes + 1> text{};
  if (zmq_curve_keypair(text.data(), secret->page_) != 0)
    return Error{ErrorCode::unsupported, "this ZeroMQ was built without CURVE; use one with libsodium, as Debian's is", ""};
  return KeyPair{{std::string(text.data(), key_text_bytes)}, std::move(*secret)};
}

std::string_view name_of(Role role) {
  constexpr std::string_view names[role_count] = {"client", "gateway", "admin", "server"};
  return names[static_cast<int>(role)];
}

std::optional<Role> role_of(std::string_view name) {
  for (int i = 0; i < role_count; ++i)
    if (name_of(static_cast<Role>(i)) == name) return static_cast<Role>(i);
  return std::nullopt;
}

}  // namespace althing::protocol::curve
