// See the header.
#include "actors/key_desk.hpp"

#include <chrono>
#include <utility>

#include "actors/logging.hpp"

namespace althing::actors {
namespace openai = protocol::openai;
namespace http = protocol::http;
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Result<KeyDesk> KeyDesk::open(const std::string& path) {
  KeyDesk desk(path);
  if (path.empty()) return desk;
  desk.seen_ = desk.look();
  auto keys = ApiKeys::read(path);
  if (!keys) return std::move(keys).error();
  desk.keys_ = std::move(*keys);
  return desk;
}

KeyDesk::Look KeyDesk::look() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_size, info.st_mtim, info.st_ctim};
}

void KeyDesk::reload(bool always) {
  if (path_.empty()) return;
  const Look newest = look();
  const auto equal = [](const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; };
  const bool same =
      newest.inode == seen_.inode && newest.size == seen_.size && equal(newest.changed, seen_.changed) && equal(newest.permitted, seen_.permitted);
  if (same && !always) return;
  seen_ = newest;
  auto keys = ApiKeys::read(path_);
  if (!keys) return log(LogLevel::error, "api_keys_unreadable", {{"reason", keys.error().message}});
  keys_ = std::move(*keys);
  log(LogLevel::info, "api_keys_read", {{"keys", keys_->size()}});
}

// The same words for a key that is missing and for one that is wrong: nobody learns which names or secrets there are.
std::variant<openai::Caller, http::ErrorReply> KeyDesk::admit(const http::Request& head) {
  if (!keys_) return openai::Caller{};
  if (const ApiKey* key = keys_->find(bearer_of(head.authorization))) {
    const KeyQuota::Rates rates{key->requests_per_minute, key->tokens_per_minute};
    const auto known = quotas_.find(key->name);
    if (known == quotas_.end())
      quotas_.emplace(key->name, KeyQuota(rates, now()));
    else if (known->second.rates() != rates)
      known->second = KeyQuota(rates, now());
    return openai::Caller{key->tenant, key->name};
  }
  return http::ErrorReply{401, "authentication_error", "invalid_api_key", "a valid API key is needed: send Authorization: Bearer KEY", "", 0};
}

KeyQuota* KeyDesk::quota_of(const std::string& name) {
  const auto found = quotas_.find(name);
  return found == quotas_.end() ? nullptr : &found->second;
}

std::optional<http::ErrorReply> KeyDesk::charge(const openai::Caller& caller) {
  KeyQuota* quota = quota_of(caller.key);
  const std::uint32_t wait = quota == nullptr ? 0 : quota->take(now());
  if (wait == 0) return std::nullopt;
  return http::ErrorReply{
      429, "rate_limit_error", "rate_limit_exceeded", "this key has used what it may for now; try again in " + std::to_string(wait) + " s", "", wait};
}

void KeyDesk::used(const openai::Caller& caller, std::uint64_t tokens) {
  if (KeyQuota* quota = quota_of(caller.key)) quota->used(tokens, now());
}

}  // namespace althing::actors
