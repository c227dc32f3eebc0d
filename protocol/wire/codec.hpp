// Wire messages to bytes and back, in both encodings. Decoding takes any bytes: it never throws, reads each field once, copies to aligned words
// before Cap'n Proto looks, allows no more traversal than the frame is long, and checks every limit. Trailing bytes are refused.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire {

enum class Encoding : char { capnp = 'c', json = 'j' };

struct Frame {
  std::string header;  // "ALT1c" or "ALT1j"
  std::string body;
};

std::string header_of(Encoding encoding);
// version when the magic is another version's, corrupt otherwise.
Result<Encoding> encoding_of(std::string_view header);

std::string encode(const ClientMessage& message, Encoding encoding);
std::string encode(const ServerMessage& message, Encoding encoding);
// Errors: corrupt, too_large, invalid_argument (field set), unsupported (a message kind this build does not know).
// `request_id` of the error's message is given back through `request_id` when it could be read, so that the reply can name it.
Result<ClientMessage> decode_client(std::string_view body, Encoding encoding, const Limits& limits, std::string* request_id = nullptr);
Result<ServerMessage> decode_server(std::string_view body, Encoding encoding, const Limits& limits);

}  // namespace althing::protocol::wire
