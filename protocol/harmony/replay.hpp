// A message of the assistant as its model wrote it. Ids that were generated can stand for the message in a later prompt, in place of its text encoded
// anew: the model then sees its own header (channel before recipient, its own words for the content type), and the prompt begins with tokens whose KV
// may still be there. Ids are taken for a message only if they say this message and nothing else: a client that sends others is told where they
// differ.
#pragma once

#include <span>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

// The message that `ids` are, as clients hear of it: from behind <|start|>assistant (which may stand in front as well) to the stop token that ended
// it. It has one text, and `tokens`, without the opening. Errors: invalid_argument (an id that no token has, no end, more than one message, a message
// that had to be mended); field is tokens.
Result<Message> message_of_ids(const Format& format, std::span<const TokenId> ids);

// What stands for a message with `tokens` in a prompt: <|start|>assistant, and its ids with the end that history wants. <|end|> stays; what stopped
// the generation is <|call|> where there is a recipient and <|end|> elsewhere. Errors: those of message_of_ids; invalid_argument where the ids say
// another role, channel, recipient, content type or text than the message does. Field is tokens.
Result<std::vector<TokenId>> replayed(const Format& format, const Message& message);

// Whether every message with `tokens` can be replayed, also one that a prompt leaves out. Errors: those of replayed; field is messages[I].tokens.
Status check_replays(const Format& format, const std::vector<Message>& messages);

}  // namespace althing::protocol::harmony
