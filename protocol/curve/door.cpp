// See the header.
#include "protocol/curve/door.hpp"

#include <cstring>

#include "protocol/curve/zap.hpp"

namespace althing::protocol::curve {
namespace {

// ZMQ_ZAP_ENFORCE_DOMAIN, which the header of a stable ZeroMQ does not name. Without it a door whose handler is gone lets everybody in.
constexpr int zap_enforce_domain = 93;
constexpr std::chrono::seconds knock_wait{5};
constexpr const char* events_endpoint = "inproc://knock";

}  // namespace

Status make_door(zmq::socket_t& socket, const SecretKey& secret) {
  const int on = 1;
  int is_on = 0;
  std::size_t size = sizeof is_on;
  if (zmq_setsockopt(socket.handle(), zap_enforce_domain, &on, sizeof on) != 0 ||
      zmq_getsockopt(socket.handle(), zap_enforce_domain, &is_on, &size) != 0 || is_on != 1)
    return Error{
        ErrorCode::unsupported,
        "this ZeroMQ cannot insist on an answer about each key (option 93), so it would let everybody in while there is none; use 4.3 or newer",
        "curve-key"};
  socket.set(zmq::sockopt::zap_domain, zap_domain);
  socket.set(zmq::sockopt::curve_server, true);
  if (zmq_setsockopt(socket.handle(), ZMQ_CURVE_SECRETKEY, secret.text(), key_text_bytes + 1) != 0)
    return Error{ErrorCode::unsupported, std::string("this ZeroMQ refuses the server's key: ") + zmq_strerror(zmq_errno()), "curve-key"};
  return Ok{};
}

void use_keys(zmq::socket_t& socket, const PublicKey& server, const KeyPair& own) {
  socket.set(zmq::sockopt::curve_serverkey, server.text.c_str());
  socket.set(zmq::sockopt::curve_publickey, own.public_key.text.c_str());
  socket.set(zmq::sockopt::curve_secretkey, own.secret.text());
}

Knock knock(const std::string& endpoint, const PublicKey& server, const KeyPair& own, std::chrono::milliseconds wait) {
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  use_keys(socket, server, own);
  if (zmq_socket_monitor(socket.handle(), events_endpoint, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) != 0)
    return Knock::silent;
  zmq::socket_t events(context, zmq::socket_type::pair);
  events.set(zmq::sockopt::linger, 0);
  events.set(zmq::sockopt::rcvtimeo, static_cast<int>(wait.count()));
  events.connect(events_endpoint);
  socket.connect(endpoint);
  zmq::message_t event;
  if (!events.recv(event) || event.size() < sizeof(std::uint16_t)) return Knock::silent;
  std::uint16_t number = 0;
  std::memcpy(&number, event.data(), sizeof number);
  return number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? Knock::accepted : Knock::denied;
}

Status try_door(const std::string& endpoint, const PublicKey& server, const KeyPair& listed) {
  const auto refuse = [](const char* what) -> Status {
    return Error{ErrorCode::internal, std::string("the door for clients was tried before it was opened, and ") + what + "; nothing is served",
                 "curve-key"};
  };
  try {
    if (knock(endpoint, server, listed, knock_wait) != Knock::accepted) return refuse("it did not let in a key that is allowed");
    auto stranger = KeyPair::make();
    if (!stranger) return stranger.error();
    if (knock(endpoint, server, *stranger, knock_wait) != Knock::denied) return refuse("it did not turn away a key that is not allowed");
  } catch (const zmq::error_t& error) {
    return refuse(error.what());
  }
  return Ok{};
}

}  // namespace althing::protocol::curve
