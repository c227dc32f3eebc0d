// What makes a ZeroMQ socket the server's door, or a client's way in: the options of both ends, and a handshake that tries whether the door does what
// it should.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "protocol/curve/key.hpp"

namespace althing::protocol::curve {

// What a client needs to come in.
struct ClientKeys {
  PublicKey server;
  KeyPair own;
};

// CURVE with this secret key, in our ZAP domain, with an answer from the ZAP handler insisted on. Errors: unsupported (a ZeroMQ that would let
// everybody in while there is no handler). REQUIRES: the socket is not bound yet, and there is a handler in its context.
Status make_door(zmq::socket_t& socket, const SecretKey& secret);
// REQUIRES: the socket is not connected yet.
void use_keys(zmq::socket_t& socket, const PublicKey& server, const KeyPair& own);

enum class Knock : std::uint8_t { accepted, denied, silent };
// One handshake with the door at `endpoint`, over a context of its own. silent: neither answer within `wait`.
Knock knock(const std::string& endpoint, const PublicKey& server, const KeyPair& own, std::chrono::milliseconds wait);
// Knocks with `listed`, which must be let in, and with a key that nobody knows, which must not. Errors: internal.
Status try_door(const std::string& endpoint, const PublicKey& server, const KeyPair& listed);

}  // namespace althing::protocol::curve
