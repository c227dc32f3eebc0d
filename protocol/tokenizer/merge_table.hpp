// Which two adjacent tokens may become one, and in what order: the pair with the lowest rank goes first.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol {

struct TokenPair {
  TokenId left = 0, right = 0;

  friend bool operator==(TokenPair, TokenPair) = default;
};

struct Merge {
  std::uint32_t rank = 0;
  TokenId merged = 0;
};

class MergeTable {
 public:
  // False when the pair is there already.
  bool add(TokenPair pair, Merge merge) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slots_[place_of(pair)];
    if (slot.used) return false;
    slot = {pair, merge, true};
    ++count_;
    return true;
  }

  // Null when the two do not merge.
  const Merge* find(TokenPair pair) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[place_of(pair)];
    return slot.used ? &slot.merge : nullptr;
  }

  std::size_t size() const { return count_; }

 private:
  struct Slot {
    TokenPair pair;
    Merge merge;
    bool used = false;
  };

  // The slot that holds the pair, or the free one where it belongs.
  std::size_t place_of(TokenPair pair) const {
    const std::uint64_t key = std::uint64_t{pair.left} << 32 | pair.right;
    const std::uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = (mixed >> (64 - std::bit_width(mask))) & mask;
    while (slots_[i].used && slots_[i].pair != pair) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    const std::vector<Slot> old = std::move(slots_);
    slots_.assign(old.empty() ? 1024 : old.size() * 2, Slot{});
    for (const Slot& slot : old)
      if (slot.used) slots_[place_of(slot.pair)] = slot;
  }

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::size_t count_ = 0;
};

}  // namespace althing::protocol
