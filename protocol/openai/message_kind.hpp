// What a generated message is to a client of OpenAI's APIs, as its header says.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

enum class MessageKind : std::uint8_t { nothing, reasoning, content, call };

// Messages to a function are tool calls, on whatever channel; to a built-in tool that nobody declared, or from another than the assistant, nothing;
// `analysis` is reasoning; all others are content. `declared`: names of functions without `functions.`; only built-in tools' names (python, browser,
// container and what is under them) are looked up. Without `calls_wanted` (tool_choice "none") a message to a function is content: its text is not
// lost, and nobody is told to call anything. With `only_final`, where a grammar holds the answer, what is neither a call nor on the final channel is
// reasoning.
MessageKind kind_of(const wire::MessageStarted& message, const std::set<std::string>& declared, bool calls_wanted, bool only_final = false);

// A recipient without `functions.`.
std::string function_of(const std::string& recipient);

}  // namespace althing::protocol::openai
