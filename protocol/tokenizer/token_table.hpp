// The vocabulary: ids to bytes, and bytes to ids for ordinary tokens. A special token has bytes (its name) but is never found by them, which
// is what keeps text from becoming a control token. No two ordinary tokens have equal bytes, and no two tokens one id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol {

// Bounds of what a vocabulary file may ask for, well above any published one; they keep a corrupt id from becoming a huge allocation.
inline constexpr TokenId token_id_max = (1u << 20) - 1;
inline constexpr std::size_t token_bytes_max = 1024;

class TokenTable {
 public:
  // Errors: corrupt (empty, bytes or id there already), too_large (over the bounds above). The message does not say where.
  Status add(TokenId id, std::string_view bytes);
  Status add_special(TokenId id, std::string_view name);

  std::optional<TokenId> find(std::string_view bytes) const;
  // Empty for an id that does not exist. Valid as long as the table is not changed.
  std::string_view bytes_of(TokenId id) const;
  bool is_special(TokenId id) const { return id < entries_.size() && entries_[id].special; }
  // One more than the largest id.
  TokenId size() const { return static_cast<TokenId>(entries_.size()); }

 private:
  struct Entry {
    std::uint32_t offset = 0, length = 0;  // in bytes_; length 0: no such id
    bool special = false;
  };
  struct Slot {
    std::uint32_t tag = 0;        // upper half of the hash: most other tokens are told apart by it
    std::uint32_t id_plus_1 = 0;  // 0: free
  };
  Status append(TokenId id, std::string_view bytes, bool special);
  void grow();
  void insert(TokenId id, std::string_view bytes);

  std::string bytes_;  // of all tokens, one after the other
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::size_t ordinary_count_ = 0;
};

}  // namespace althing::protocol
