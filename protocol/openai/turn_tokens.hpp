// The generated ids of a turn, message by message, so that a later prompt can repeat them as they were drawn.
#pragma once

#include <span>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"

namespace althing::protocol::openai {

// `ids`: all that the model generated after <|start|>assistant. `messages`: what became of them. Gives each message its tokens, and the content type
// that its model wrote, where it is certain that they are this message (harmony/replay.hpp); a message that was malformed, cut, or mapped to another
// channel or recipient gets none, and where there are not as many messages in the ids none gets any.
void add_tokens(const harmony::Format& format, std::span<const TokenId> ids, std::vector<harmony::Message>& messages);

}  // namespace althing::protocol::openai
