// What stands between <|start|> and <|message|>, read from its text with the reference parser's rules (openai-harmony 0.0.8), its known
// misreadings included: correcting them is the server's business, and the server can only do that on a base that is known exactly.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

struct ParsedHeader {
  Role role = Role::user;
  std::optional<std::string> name;  // of a tool only
  std::optional<std::string> recipient;
  std::optional<std::string> channel;
  std::optional<std::string> content_type;
};

// `role` is what the prompt said already, if it did. Errors: corrupt, with the reference's wording; `field` is one of empty_channel,
// missing_role, unknown_role, header_leftover. REQUIRES: `text` is UTF-8.
Result<ParsedHeader> parse_header(std::string_view text, std::optional<Role> role);

// A header that ended in a stop token: role and channel are read, the other words, joined by single spaces, are the message's text.
struct UnfinishedMessage {
  ParsedHeader header;
  std::string text;
};
// Errors: as parse_header.
Result<UnfinishedMessage> parse_unfinished(std::string_view text, Role role);

}  // namespace althing::protocol::harmony
