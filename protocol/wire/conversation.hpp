// From what a client submits to the conversation that is rendered: a system message with the reasoning effort and date is put in front when the
// client sent none, and tools become the `functions` namespace of the developer message (one is added after the system message when there is none).
#pragma once

#include <string>

#include "protocol/wire/messages.hpp"

namespace althing::protocol::wire {

// The date in UTC, as YYYY-MM-DD: what conversations are rendered with.
std::string today();

// `date` is YYYY-MM-DD or "" for none. Errors: invalid_argument (no messages, a tool name twice, …).
Result<harmony::Conversation> conversation_of(const Submit& submit, const std::string& date);

}  // namespace althing::protocol::wire
