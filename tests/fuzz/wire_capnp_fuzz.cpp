// Any bytes as a Cap'n Proto body, in both directions. What is decoded must pass through both encodings unchanged: a message that one of them cannot
// carry would reach clients of one language and not of another. The first byte picks the offset, because ZeroMQ's buffers start anywhere.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "protocol/wire/codec.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;

Limits limits() {
  Limits l;
  l.frame_bytes_max = 1u << 16;
  return l;
}

template <class Message, class Decode>
void carry(const Message& message, Decode decode) {
  const auto again = decode(wire::encode(message, wire::Encoding::capnp), wire::Encoding::capnp);
  if (!again || wire::encode(*again, wire::Encoding::json) != wire::encode(message, wire::Encoding::json)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t offset = data[0] % 8;
  const auto buffer = std::make_unique<char[]>(size + 8);
  std::memcpy(buffer.get() + offset, data + 1, size - 1);
  const std::string_view body(buffer.get() + offset, size - 1);
  std::string id;
  const auto client = [](std::string_view bytes, wire::Encoding encoding) { return wire::decode_client(bytes, encoding, limits()); };
  const auto server = [](std::string_view bytes, wire::Encoding encoding) { return wire::decode_server(bytes, encoding, limits()); };
  if (const auto message = wire::decode_client(body, wire::Encoding::capnp, limits(), &id)) carry(*message, client);
  if (const auto message = server(body, wire::Encoding::capnp)) carry(*message, server);
  return 0;
}
