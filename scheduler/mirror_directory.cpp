// Ordered maps throughout: which page goes must not depend on a hash or an address, or a journal would not replay to the same plans.
#include "scheduler/mirror_directory.hpp"

namespace althing::scheduler {

std::optional<MirrorSlot> MirrorDirectory::find(PageKey key) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  return found->second;
}

std::optional<MirrorSlot> MirrorDirectory::take(PageKey key) {
  MirrorSlot slot;
  if (!returned_.empty()) {
    slot = returned_.back();
    returned_.pop_back();
  } else if (slots_.size() < total_) {
    slot = MirrorSlot{static_cast<std::uint32_t>(slots_.size())};
    slots_.emplace_back();
  } else if (!idle_.empty()) {
    slot = idle_.begin()->second;
    release(slot);
  } else {
    return std::nullopt;
  }
  hold(slot, key);
  slots_[slot.value].claims = 1;
  return slot;
}

void MirrorDirectory::claim(MirrorSlot slot) {
  Slot& held = slots_[slot.value];
  if (held.claims++ == 0) idle_.erase(held.idle_since);
}

void MirrorDirectory::unclaim(MirrorSlot slot) {
  if (--slots_[slot.value].claims == 0) rest(slot);
}

void MirrorDirectory::forget(MirrorSlot slot) {
  release(slot);
  returned_.push_back(slot);
}

void MirrorDirectory::clear() {
  slots_.clear();
  returned_.clear();
  by_key_.clear();
  idle_.clear();
}

void MirrorDirectory::assume(MirrorSlot slot, PageKey key) {
  if (slot.value >= total_ || by_key_.contains(key)) return;
  for (auto next = static_cast<std::uint32_t>(slots_.size()); next <= slot.value; ++next) {
    slots_.emplace_back();
    if (next < slot.value) returned_.push_back(MirrorSlot{next});
  }
  if (slots_[slot.value].held || slot.value + 1 != slots_.size()) return;
  hold(slot, key);
  rest(slot);
}

std::string MirrorDirectory::check(const std::map<MirrorSlot, std::uint32_t>& claims) const {
  std::size_t held = 0;
  std::size_t idle = 0;
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    const std::string what = "mirror slot " + std::to_string(s);
    const Slot& slot = slots_[s];
    const auto claimed = claims.find(MirrorSlot{s});
    const std::uint32_t expected = claimed == claims.end() ? 0 : claimed->second;
    if (slot.claims != expected) return what + " counts " + std::to_string(slot.claims) + " claims, sequences have " + std::to_string(expected);
    if (!slot.held) {
      if (slot.claims > 0) return what + " is free and claimed";
      continue;
    }
    ++held;
    if (find(slot.key) != MirrorSlot{s}) return what + " is not found by its key";
    if (slot.claims > 0) continue;
    ++idle;
    const auto rests = idle_.find(slot.idle_since);
    if (rests == idle_.end() || rests->second != MirrorSlot{s}) return what + " is idle and not in the order of idle ones";
  }
  if (slots_.size() > total_) return "the mirror has more slots than " + std::to_string(total_);
  if (by_key_.size() != held) return "mirror keys: expected " + std::to_string(held) + ", found " + std::to_string(by_key_.size());
  if (idle_.size() != idle) return "idle mirror slots: expected " + std::to_string(idle) + ", found " + std::to_string(idle_.size());
  if (returned_.size() + held != slots_.size())
    return "free mirror slots: expected " + std::to_string(slots_.size() - held) + ", found " + std::to_string(returned_.size());
  for (const auto& [slot, count] : claims)
    if (slot.value >= slots_.size()) return "a sequence has claimed mirror slot " + std::to_string(slot.value) + ", which was never used";
  return {};
}

void MirrorDirectory::hold(MirrorSlot slot, PageKey key) {
  slots_[slot.value] = Slot{true, key, 0, 0};
  by_key_[key] = slot;
}

void MirrorDirectory::release(MirrorSlot slot) {
  Slot& held = slots_[slot.value];
  by_key_.erase(held.key);
  idle_.erase(held.idle_since);
  held = Slot{};
}

void MirrorDirectory::rest(MirrorSlot slot) {
  slots_[slot.value].idle_since = ++idle_number_;
  idle_[idle_number_] = slot;
}

}  // namespace althing::scheduler
