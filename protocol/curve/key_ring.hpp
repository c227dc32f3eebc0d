// The keys that count now: those of the allow-list, which may be another one at any time, and those that this server made for its own use. Read by
// the thread that answers handshakes and by the gateway. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/curve/allow_list.hpp"

namespace althing::protocol::curve {

class KeyRing {
 public:
  // `own` are allowed whatever the list says.
  KeyRing(const AllowList& list, AllowList own);

  // By the key's Z85 text. nullopt: nobody to us.
  std::optional<KeyEntry> find(const std::string& key) const;

  struct Change {
    std::size_t keys = 0, added = 0, revoked = 0;  // keys: of the list
  };
  Change replace(const AllowList& list);
  // Grows with every list that lacks a key of the one before.
  std::uint64_t revocations() const;

 private:
  using Keys = std::map<std::string, KeyEntry>;  // by Z85 text
  Keys keys_of(const AllowList& list) const;

  AllowList own_;
  mutable std::mutex mutex_;          // guards what follows
  std::shared_ptr<const Keys> keys_;  // never changed, only exchanged
  std::uint64_t revocations_ = 0;
};

}  // namespace althing::protocol::curve
