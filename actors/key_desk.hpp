// Who may use the HTTP gateway: the keys of a file that is read again when it changes, and what each may still use. Without a file everybody may, for
// himself. A file that cannot be read any more changes nothing: those who had a key keep it, and the log says so.
#pragma once

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>

#include "actors/api_keys.hpp"
#include "actors/key_quota.hpp"
#include "protocol/openai/front_desk.hpp"

namespace althing::actors {

class KeyDesk : public protocol::openai::Doorkeeper {
 public:
  // `path` "": no keys. Errors: ApiKeys::read's.
  static Result<KeyDesk> open(const std::string& path);

  bool needs_keys() const override { return keys_.has_value(); }
  std::variant<protocol::openai::Caller, protocol::http::ErrorReply> admit(const protocol::http::Request& head) override;
  std::optional<protocol::http::ErrorReply> charge(const protocol::openai::Caller& caller) override;
  void used(const protocol::openai::Caller& caller, std::uint64_t tokens) override;

  // Reads the file again; `always`: also when it looks as it did.
  void reload(bool always);

 private:
  explicit KeyDesk(std::string path) : path_(std::move(path)) {}
  KeyQuota* quota_of(const std::string& name);
  // What changes when the file does.
  struct Look {
    ino_t inode = 0;
    off_t size = 0;
    timespec changed{};
    timespec permitted{};  // of owner and mode too: a file that was refused for them is mended without a word of it changing
  };
  Look look() const;

  std::string path_;
  std::optional<ApiKeys> keys_;
  Look seen_;
  std::map<std::string, KeyQuota> quotas_;  // by the name of the key; of those that were used
};

}  // namespace althing::actors
