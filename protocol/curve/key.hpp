// Keys of ZeroMQ's CURVE: who may speak at the server's door, and the server's own. A public key is 40 characters of Z85 and may be shown to anybody.
// A secret one lives in a page of its own that is in no core dump and is wiped at the end; no error, log line or printed setting ever holds it, or
// any text that somebody gave us in its place.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::curve {

inline constexpr std::size_t key_bytes = 32;
inline constexpr std::size_t key_text_bytes = 40;  // the same in Z85

struct PublicKey {
  std::string text;  // Z85; each key has one form only

  friend auto operator<=>(const PublicKey&, const PublicKey&) = default;
};

// Errors: invalid_argument for text that is no key, for the key of all zeros, and for those that the manual of zmq_curve prints as an example, since
// everybody knows their secret halves.
Result<PublicKey> public_key_of(std::string_view text);
// REQUIRES: key_bytes bytes.
PublicKey public_key_of_bytes(std::string_view bytes);
// Whether text could be a key, public or secret: whoever gives one where a file's name belongs must not see it repeated.
bool looks_like_key(std::string_view text);

class SecretKey {
 public:
  // Errors: as public_key_of, of the public half; io where there is no memory.
  static Result<SecretKey> of(std::string_view text);
  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&& other) noexcept;
  // Wipes it.
  ~SecretKey();

  // Z85 with a zero behind it, for ZeroMQ's options only.
  const char* text() const { return page_; }
  PublicKey public_key() const;

 private:
  friend struct KeyPair;
  explicit SecretKey(char* page) : page_(page) {}
  static Result<SecretKey> empty();
  char* page_ = nullptr;
};

struct KeyPair {
  PublicKey public_key;
  SecretKey secret;

  // From the operating system's randomness. Errors: io, unsupported (a ZeroMQ without CURVE).
  static Result<KeyPair> make();
};

enum class Role : std::uint8_t { client, gateway, admin, server };
inline constexpr int role_count = static_cast<int>(Role::server) + 1;
std::string_view name_of(Role role);
std::optional<Role> role_of(std::string_view name);

}  // namespace althing::protocol::curve
