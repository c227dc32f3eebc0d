// Messages of OpenAI's chat completions as Harmony messages. Order within one assistant message with tool calls: its content as a preamble, its
// reasoning, its calls. Which reasoning the model sees again is the renderer's business (harmony/history.hpp).
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "protocol/harmony/message.hpp"

namespace althing::protocol::openai {

// `messages`: the request's list. system and developer texts become developer messages; reasoning is taken under both of its names (`reasoning`,
// `reasoning_content`); results of tools find their function by tool_call_id; assistant messages that say nothing are left out. Errors:
// invalid_argument, whose field is the path of the member, as in messages[2].tool_call_id; unsupported for parts that are no text.
Result<std::vector<harmony::Message>> messages_from_chat(const nlohmann::ordered_json& messages);

}  // namespace althing::protocol::openai
