// Who may speak at the server's door: one line a key, `ROLE NAME KEY [TENANT]`, in a text file; # begins a comment line. A file that is wrong
// anywhere is wrong as a whole: half a list would lock somebody out, or in. The same line stands alone in the .pub file of a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol/curve/key.hpp"

namespace althing::protocol::curve {

inline constexpr std::size_t allow_list_bytes_max = 1u << 20;
inline constexpr std::size_t allow_list_keys_max = 10'000;
inline constexpr std::size_t name_bytes_max = 64;  // of a key's name, and of a tenant

struct KeyEntry {
  Role role = Role::client;
  std::string name;  // A-Z a-z 0-9 . _ -
  PublicKey key;
  std::string tenant;  // likewise; "": the server's default

  friend bool operator==(const KeyEntry&, const KeyEntry&) = default;
};

using AllowList = std::vector<KeyEntry>;

bool is_name(std::string_view text);
// Errors: invalid_argument, never with text of the line.
Result<KeyEntry> entry_of(std::string_view line);
std::string to_line(const KeyEntry& entry);

// Errors: invalid_argument with the line's number (a line that is none, a key or a name that is there twice, a server's key), too_large.
Result<AllowList> allow_list_of(std::string_view text);

// The text with one more line. Errors: those of allow_list_of for what it would become.
Result<std::string> with_key(std::string_view text, const KeyEntry& entry);
// The text without the line whose name or key this is; comments stay. Errors: not_found, and those of allow_list_of.
Result<std::string> without_key(std::string_view text, std::string_view name_or_key);

}  // namespace althing::protocol::curve
