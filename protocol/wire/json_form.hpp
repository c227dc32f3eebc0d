// The JSON form of the messages (docs/protocol.md): one object with the member "type". Only codec.cpp calls this; it has checked the length before
// and checks the contents after. Unknown members are ignored, null counts as absent, 64-bit numbers may be numbers or decimal strings.
#pragma once

#include <string>
#include <string_view>

#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire::json_form {

std::string encode(const ClientMessage& message);
std::string encode(const ServerMessage& message);
// Errors: corrupt (not JSON), invalid_argument (a member of the wrong kind), unsupported (an unknown type), too_large where a list is longer than its
// limit. request_id is set as soon as it is known.
Result<ClientMessage> decode_client(std::string_view body, const Limits& limits, std::string& request_id);
Result<ServerMessage> decode_server(std::string_view body);

}  // namespace althing::protocol::wire::json_form
