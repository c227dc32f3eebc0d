// See the header.
#include "protocol/curve/key_ring.hpp"

#include <utility>

namespace althing::protocol::curve {

KeyRing::KeyRing(const AllowList& list, AllowList own) : own_(std::move(own)), keys_(std::make_shared<const Keys>(keys_of(list))) {}

KeyRing::Keys KeyRing::keys_of(const AllowList& list) const {
  Keys keys;
  for (const AllowList* some : {&own_, &list})
    for (const KeyEntry& entry : *some) keys.emplace(entry.key.text, entry);
  return keys;
}

std::optional<KeyEntry> KeyRing::find(const std::string& key) const {
  std::shared_ptr<const Keys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  const auto found = keys->find(key);
  return found == keys->end() ? std::nullopt : std::optional(found->second);
}

KeyRing::Change KeyRing::replace(const AllowList& list) {
  auto next = std::make_shared<const Keys>(keys_of(list));
  Change change{list.size(), 0, 0};
  const std::lock_guard lock(mutex_);
  for (const auto& [key, entry] : *next) change.added += keys_->contains(key) ? 0 : 1;
  for (const auto& [key, entry] : *keys_) change.revoked += next->contains(key) ? 0 : 1;
  keys_ = std::move(next);
  if (change.revoked > 0) ++revocations_;
  return change;
}

std::uint64_t KeyRing::revocations() const {
  const std::lock_guard lock(mutex_);
  return revocations_;
}

}  // namespace althing::protocol::curve
