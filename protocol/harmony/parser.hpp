// Token ids to messages, one token at a time: openai-harmony 0.0.8's StreamableParser, exactly, strict and not. After an error the parser
// stays usable; the next <|start|> resynchronises.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/header.hpp"
#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

class StreamableParser {
 public:
  enum class State : std::uint8_t { expect_start, header, content };

  // With a role, the prompt already held <|start|> and that role: the parser starts inside the header.
  StreamableParser(Format format, std::optional<Role> role, bool strict = true);

  // Errors: corrupt, with upstream's wording. State after an error as upstream's. `field` holds the kind: unexpected_token, eos_in_header,
  // header_leftover, unknown_role, missing_role, empty_channel, header_not_utf8; and for a header ended by a stop token when not strict,
  // invalid_token, invalid_utf8.
  Status process(TokenId token);
  // End of stream.
  Status finish();

  State state() const;
  std::optional<Role> current_role() const;            // header's in content, else the pending one
  std::optional<std::string> current_channel() const;  // in content only, as the next two
  std::optional<std::string> current_recipient() const;
  std::optional<std::string> current_content_type() const;
  std::string current_content() const;
  // Text added by the last process() call, if any. Deltas and the final flush concatenate to the content.
  std::optional<std::string> last_content_delta() const;
  const std::vector<Message>& messages() const;
  std::span<const TokenId> tokens() const;
  std::string state_json() const;

 private:
  Status complete_header();
  Status complete_unfinished();
  void push_content(TokenId token);
  void complete_message();
  void emit(std::string_view piece);

  Format format_;
  bool strict_;
  State state_;
  std::optional<Role> pending_role_;
  std::vector<TokenId> tokens_;
  std::vector<Message> messages_;

  std::vector<TokenId> header_tokens_;  // in header
  // In content:
  ParsedHeader header_;
  std::string text_;                     // decoded so far, UTF-8
  std::vector<std::size_t> piece_ends_;  // offsets in text_ after each piece that was decoded at once
  std::string undecoded_;                // bytes that are not a character yet, from undecoded_begin_ on
  std::size_t undecoded_begin_ = 0;
  bool blocked_ = false;  // an unknown id was met: upstream decodes no more of this message
  std::optional<std::string> delta_;
};

// Everything fed, then end of stream.
Result<std::vector<Message>> parse_messages(const Format& format, std::span<const TokenId> tokens, std::optional<Role> role, bool strict = true);

}  // namespace althing::protocol::harmony
