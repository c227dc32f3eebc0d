// The control tokens of Harmony as the loaded tokenizer knows them. Ids are looked up by name once and never written down.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::protocol::harmony {

// The two control tokens that the header grammar also knows as text.
inline constexpr std::string_view channel_marker = "<|channel|>";
inline constexpr std::string_view constrain_marker = "<|constrain|>";

struct Format {
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenId start = 0, end = 0, message = 0, channel = 0, constrain = 0, call = 0, return_ = 0, endoftext = 0;

  // Tokens after which a message is complete: return, end, call.
  bool is_message_stop(TokenId token) const { return token == return_ || token == end || token == call; }
  // Tokens that end sampling of an assistant turn: return, call (and endoftext, which the model configs list).
  std::vector<TokenId> sampling_stops() const { return {return_, call, endoftext}; }

  // unsupported when the tokenizer lacks one of the names.
  static Result<Format> of(std::shared_ptr<const Tokenizer> tokenizer);
};

}  // namespace althing::protocol::harmony
