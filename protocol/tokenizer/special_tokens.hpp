// The names of special tokens, and where in a text the leftmost of them stands. Two names may mean one token.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol {

class SpecialTokens {
 public:
  struct Match {
    std::size_t begin = 0, length = 0;
    TokenId token = 0;
  };

  SpecialTokens() = default;
  // REQUIRES: no name is empty or there twice.
  explicit SpecialTokens(std::vector<std::pair<std::string, TokenId>> tokens);

  std::optional<TokenId> find(std::string_view name) const;
  // The leftmost name at or after `begin`, the longest of those that begin there.
  std::optional<Match> next(std::string_view text, std::size_t begin) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<std::pair<std::string, TokenId>> sorted_;  // by name
  std::string first_bytes_;                              // each first byte of a name, once
};

}  // namespace althing::protocol
