// What a row's penalties need to know: which tokens occur in its prompt and completion, and how often in the completion. Counts do not depend on the
// order in which tokens came to be known, so a row that was set anew goes on exactly as it was.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::gpu {

struct SeenToken {
  TokenId token = 0;
  std::uint32_t output_count = 0;  // how often it is in the completion

  friend bool operator==(const SeenToken&, const SeenToken&) = default;
};

class SeenTokens {
 public:
  SeenTokens() = default;
  // REQUIRES: prompt_count <= tokens.size().
  SeenTokens(std::span<const TokenId> tokens, std::uint32_t prompt_count) {
    for (const TokenId token : tokens.first(prompt_count)) place_of(token);
    for (const TokenId token : tokens.subspan(prompt_count)) add_output(token);
    length_ = static_cast<std::uint32_t>(tokens.size());
  }

  // One more token of the completion.
  void add_output(TokenId token) {
    ++list_[place_of(token)].output_count;
    ++length_;
  }
  // Each token once, in no order that means anything.
  std::span<const SeenToken> list() const { return list_; }
  // Tokens of prompt and completion together: the position of the next draw.
  std::uint32_t length() const { return length_; }

 private:
  std::uint32_t place_of(TokenId token) {
    const auto [entry, is_new] = places_.try_emplace(token, static_cast<std::uint32_t>(list_.size()));
    if (is_new) list_.push_back({token, 0});
    return entry->second;
  }

  std::vector<SeenToken> list_;
  std::unordered_map<TokenId, std::uint32_t> places_;
  std::uint32_t length_ = 0;
};

}  // namespace althing::gpu
