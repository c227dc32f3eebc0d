// Token ids to messages, one token at a time: openai-harmony 0.0.8's StreamableParser, exactly, strict and not. After an error the parser
// stays usable; the next <|start|> resynchronises.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

class StreamableParser {
 public:
  enum class State : std::uint8_t { expect_start, header, content };

  // With a role, the prompt already held <|start|> and that role: the parser starts inside the header.
  StreamableParser(Format format, std::optional<Role> role, bool strict = true);

  // Errors: corrupt, with upstream's wording. State after an error as upstream's.
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
  // The implementation adds its members here.
};

// Everything fed, then end of stream.
Result<std::vector<Message>> parse_messages(const Format& format, std::span<const TokenId> tokens, std::optional<Role> role, bool strict = true);

}  // namespace althing::protocol::harmony
