// The Cap'n Proto form of the messages (protocol/wire.capnp). Only codec.cpp calls this; it has checked the length before and checks the contents
// after. Decoding copies to aligned words, may traverse as many words as the body has (each getter is called once), nests at most 16 deep, and turns
// every exception of the library into an Error.
#pragma once

#include <string>
#include <string_view>

#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire::capnp_form {

inline constexpr int nesting_max = 16;

std::string encode(const ClientMessage& message);
std::string encode(const ServerMessage& message);
// Errors: corrupt, unsupported, and too_large where a list is longer than its limit. request_id is set as soon as it is known.
Result<ClientMessage> decode_client(std::string_view body, const Limits& limits, std::string& request_id);
Result<ServerMessage> decode_server(std::string_view body);

}  // namespace althing::protocol::wire::capnp_form
