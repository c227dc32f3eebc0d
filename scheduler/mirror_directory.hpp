// What one DP group's mirror holds: which slot has which page, who still needs it, and which page goes when another wants its place. A page that live
// sequences have claimed stays; of the others the one that has been idle longest goes first, so the pages of finished requests make room.
// Invariant: a slot is free, or holds one key; a key is in one slot; a slot is idle exactly when it holds a key and has no claim.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::scheduler {

class MirrorDirectory {
 public:
  explicit MirrorDirectory(std::uint32_t slot_count) : total_(slot_count) {}

  std::uint32_t total() const { return total_; }
  std::uint32_t used() const { return static_cast<std::uint32_t>(by_key_.size()); }
  std::optional<MirrorSlot> find(PageKey key) const;
  // REQUIRES: the slot holds a key.
  PageKey key_of(MirrorSlot slot) const { return slots_[slot.value].key; }

  // A slot for a page that is not here yet, with one claim. None when every slot holds a page that somebody has claimed.
  // REQUIRES: !find(key).
  std::optional<MirrorSlot> take(PageKey key);
  // REQUIRES (both): the slot holds a key, and for unclaim a claim.
  void claim(MirrorSlot slot);
  void unclaim(MirrorSlot slot);
  // The page is not to be used any more. REQUIRES: the slot holds a key without a claim.
  void forget(MirrorSlot slot);

  // As reported by ranks: all slots are free, then each page is there, idle. A page that cannot be (a slot or a key for the second time, a slot
  // beyond the last) is passed over.
  void clear();
  void assume(MirrorSlot slot, PageKey key);

  // Empty, or what does not add up when sequences have claimed the slots so many times. For tests.
  std::string check(const std::map<MirrorSlot, std::uint32_t>& claims) const;

 private:
  struct Slot {
    bool held = false;
    PageKey key;
    std::uint32_t claims = 0;
    std::uint64_t idle_since = 0;  // a number that grows
  };
  void hold(MirrorSlot slot, PageKey key);
  void release(MirrorSlot slot);
  void rest(MirrorSlot slot);

  std::uint32_t total_;
  std::vector<Slot> slots_;           // those below the frontier: slots behind it were never used
  std::vector<MirrorSlot> returned_;  // free ones below the frontier; the last is taken first
  std::map<PageKey, MirrorSlot> by_key_;
  std::map<std::uint64_t, MirrorSlot> idle_;
  std::uint64_t idle_number_ = 0;
};

}  // namespace althing::scheduler
