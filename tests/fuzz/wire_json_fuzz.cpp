// Any bytes as a JSON body, in both directions. What is decoded must encode to JSON that decodes to the same, and to Cap'n Proto that does: the two
// encodings carry the same messages. Whatever is refused must be refused without an exception, deep recursion or much time.
#include <cstdint>
#include <cstdlib>

#include "protocol/wire/codec.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;

Limits limits() {
  Limits l;
  l.frame_bytes_max = 1u << 16;
  return l;
}

// Encoding may make a message longer than it came, past the limit of the frame: that is the one error that is allowed.
template <class Message, class Decode>
void carry(const Message& message, Decode decode) {
  const std::string json = wire::encode(message, wire::Encoding::json);
  for (const auto encoding : {wire::Encoding::json, wire::Encoding::capnp}) {
    const auto again = decode(wire::encode(message, encoding), encoding);
    if (!again && again.error().code == ErrorCode::too_large) continue;
    if (!again || wire::encode(*again, wire::Encoding::json) != json) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  std::string id;
  const auto client = [](std::string_view bytes, wire::Encoding encoding) { return wire::decode_client(bytes, encoding, limits()); };
  const auto server = [](std::string_view bytes, wire::Encoding encoding) { return wire::decode_server(bytes, encoding, limits()); };
  if (const auto message = wire::decode_client(body, wire::Encoding::json, limits(), &id)) carry(*message, client);
  if (const auto message = server(body, wire::Encoding::json)) carry(*message, server);
  return 0;
}
