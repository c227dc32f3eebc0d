// The file of API keys, read and looked up in. A line is a key: NAME SHA256 and then tenant=, requests_per_minute= and tokens_per_minute=, as many of
// them as wanted; # begins a comment. Only hashes of secrets are kept, on disk and here; a secret is compared in time that does not depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

struct ApiKey {
  std::string name;
  std::array<unsigned char, 32> sha256{};
  std::string tenant;                     // "": the name
  std::uint32_t requests_per_minute = 0;  // 0: no limit
  std::uint32_t tokens_per_minute = 0;    // of prompts and completions; 0: no limit
};

class ApiKeys {
 public:
  static constexpr std::size_t keys_max = 10'000;
  static constexpr std::size_t file_bytes_max = 4u << 20;

  // Errors: not_found, io, invalid_argument (not a regular file, not the user's own or readable by others, a line that cannot be read: its number).
  static Result<ApiKeys> read(const std::string& path);
  static Result<ApiKeys> parse(std::string_view text);

  // Looks at every key, whether it has found the right one or not.
  const ApiKey* find(std::string_view secret) const;
  std::size_t size() const { return keys_.size(); }

 private:
  std::vector<ApiKey> keys_;
};

// In `Authorization: Bearer SECRET`; "" when it is not of that form.
std::string_view bearer_of(std::string_view authorization);

}  // namespace althing::actors
