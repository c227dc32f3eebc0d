// Conversations as plain text, for models that do not speak Harmony: a JSON file says what is written around each message. docs/chat-templates.md
// has the members and examples.
//
//   {"user": "User: {content}\n", "assistant": "Bot: {content}\n", "prompt": "Bot:", "stop": ["\nUser:"]}
//
// Names of special tokens in the file are those tokens; the same names in what clients send are ordinary text. A message is tokenized as one piece
// of text between special tokens, and never together with the next message, so a longer conversation begins with the ids of the shorter one.
#pragma once

#include <string_view>

#include "protocol/chat/chat_format.hpp"

namespace althing::protocol::chat {

// `text`: what stands in the file. Errors: invalid_argument with the member (not JSON, a member missing, unknown or of the wrong kind, a template
// without one {content}, a stop token that the tokenizer does not have).
Result<ChatFormat> plain_template(std::string_view text, std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace althing::protocol::chat
