// The door through which all bytes come: length first, then the form of the encoding, then the contents.
// Nothing behind it sees a body longer than frame_bytes_max, and nothing before it sees a message that check() has not passed.
// A new encoding is one more letter here and one more pair of files.
#include "protocol/wire/codec.hpp"

#include <algorithm>
#include <utility>

#include "protocol/wire/capnp_form.hpp"
#include "protocol/wire/check.hpp"
#include "protocol/wire/json_form.hpp"

namespace althing::protocol::wire {
namespace {

constexpr std::string_view magic = "ALT";

Status check_length(std::string_view body, const Limits& limits) {
  if (body.size() <= limits.frame_bytes_max) return Ok{};
  return Error{ErrorCode::too_large,
               "the body is " + std::to_string(body.size()) + " bytes long, over the limit of " + std::to_string(limits.frame_bytes_max) +
                   " (frame_bytes_max)",
               ""};
}

template <class Message>
Result<Message> checked(Result<Message> decoded, const Limits& limits) {
  if (!decoded) return decoded;
  if (auto status = check(*decoded, limits); !status) return std::move(status).error();
  return decoded;
}

}  // namespace

std::string header_of(Encoding encoding) { return std::string("ALT1") + static_cast<char>(encoding); }

Result<Encoding> encoding_of(std::string_view header) {
  const std::string_view number = header.size() > magic.size() + 1 && header.starts_with(magic) ? header.substr(3, header.size() - 4) : "";
  if (number.empty() || number.size() > 9 || !std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return Error{ErrorCode::corrupt, "the frame header is " + std::to_string(header.size()) + " bytes that are not \"ALT1c\" or \"ALT1j\"", "header"};
  if (number != "1")
    return Error{ErrorCode::version, "the frame header asks for wire format " + std::string(number) + "; this build speaks 1 (\"ALT1c\", \"ALT1j\")",
                 "header"};
  if (header.back() == static_cast<char>(Encoding::capnp)) return Encoding::capnp;
  if (header.back() == static_cast<char>(Encoding::json)) return Encoding::json;
  return Error{ErrorCode::unsupported, "the frame header ends in an encoding that is not known: use c (Cap'n Proto) or j (JSON)", "header"};
}

std::string encode(const ClientMessage& message, Encoding encoding) {
  return encoding == Encoding::capnp ? capnp_form::encode(message) : json_form::encode(message);
}

std::string encode(const ServerMessage& message, Encoding encoding) {
  return encoding == Encoding::capnp ? capnp_form::encode(message) : json_form::encode(message);
}

Result<ClientMessage> decode_client(std::string_view body, Encoding encoding, const Limits& limits, std::string* request_id) {
  if (request_id != nullptr) request_id->clear();
  if (auto status = check_length(body, limits); !status) return std::move(status).error();
  std::string id;
  auto decoded =
      checked(encoding == Encoding::capnp ? capnp_form::decode_client(body, limits, id) : json_form::decode_client(body, limits, id), limits);
  // An id that could not be an id is not worth repeating.
  if (request_id != nullptr && !id.empty() && check(ClientMessage(Cancel{id}), limits)) *request_id = std::move(id);
  return decoded;
}

Result<ServerMessage> decode_server(std::string_view body, Encoding encoding, const Limits& limits) {
  if (auto status = check_length(body, limits); !status) return std::move(status).error();
  return checked(encoding == Encoding::capnp ? capnp_form::decode_server(body) : json_form::decode_server(body), limits);
}

}  // namespace althing::protocol::wire
