// Finds the control tokens by name, and says all that are missing at once: a tokenizer that lacks one usually lacks them all.
#include "protocol/harmony/format.hpp"

#include <string>
#include <utility>

namespace althing::protocol::harmony {

Result<Format> Format::of(std::shared_ptr<const Tokenizer> tokenizer) {
  if (!tokenizer) return Error{ErrorCode::invalid_argument, "No tokenizer was given; load one before asking for the Harmony format.", "tokenizer"};
  Format format;
  const std::pair<std::string_view, TokenId*> wanted[] = {
      {"<|start|>", &format.start},          {"<|end|>", &format.end},   {"<|message|>", &format.message}, {channel_marker, &format.channel},
      {constrain_marker, &format.constrain}, {"<|call|>", &format.call}, {"<|return|>", &format.return_},  {"<|endoftext|>", &format.endoftext},
  };
  std::string missing;
  for (const auto& [name, id] : wanted) {
    if (const auto found = tokenizer->special(name)) {
      *id = *found;
    } else {
      missing += (missing.empty() ? "" : ", ") + std::string(name);
    }
  }
  if (!missing.empty())
    return Error{ErrorCode::unsupported,
                 "The tokenizer has no special token " + missing + "; Harmony needs all of them, so use the tokenizer of a gpt-oss model.",
                 "tokenizer"};
  format.tokenizer = std::move(tokenizer);
  return format;
}

}  // namespace althing::protocol::harmony
