// All of ZeroMQ that the client needs. Options whose defaults hurt are set here: bounded linger, heartbeats on the connection (a cable that was
// pulled is noticed), a bound on what the peer may announce, quick reconnection. Exceptions of cppzmq end in this file. The socket stays with the
// thread that polls; ZeroMQ's own thread does the TCP work meanwhile.
#include "protocol/client/link.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace althing::protocol {
namespace {

constexpr int linger_ms = 200;  // how long the last frames (a cancel) may take to leave when the client is destroyed
constexpr int heartbeat_ms = 1000;
constexpr int heartbeat_timeout_ms = 3000;  // a TCP connection that is silent for so long is made anew
constexpr int reconnect_ms = 50;
constexpr int reconnect_ms_max = 1000;
constexpr std::size_t parts_max = 3;
constexpr const char* events_endpoint = "inproc://handshakes";  // every link has a context of its own

}  // namespace

Result<Link> Link::open(const std::string& endpoint, std::size_t frame_bytes_max) {
  try {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, linger_ms);
    socket.set(zmq::sockopt::heartbeat_ivl, heartbeat_ms);
    socket.set(zmq::sockopt::heartbeat_timeout, heartbeat_timeout_ms);
    socket.set(zmq::sockopt::reconnect_ivl, reconnect_ms);
    socket.set(zmq::sockopt::reconnect_ivl_max, reconnect_ms_max);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(frame_bytes_max));
    // Whoever waits for a ping's answer to learn that the server was restarted waits a second too long.
    if (zmq_socket_monitor(socket.handle(), events_endpoint, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0) throw zmq::error_t();
    zmq::socket_t events(context, zmq::socket_type::pair);
    events.connect(events_endpoint);
    socket.connect(endpoint);
    return Link(std::move(context), std::move(socket), std::move(events));
  } catch (const zmq::error_t& failure) {
    const bool bad_endpoint = failure.num() == EINVAL || failure.num() == EPROTONOSUPPORT || failure.num() == ENODEV;
    return Error{bad_endpoint ? ErrorCode::invalid_argument : ErrorCode::io,
                 "cannot connect to \"" + endpoint + "\": " + failure.what() + "; an endpoint looks like tcp://127.0.0.1:4550", "endpoint"};
  }
}

bool Link::send(std::string_view header, std::string_view body) {
  try {
    // The second part always follows: ZeroMQ takes or refuses a whole message at its first part.
    if (!socket_.send(zmq::buffer(header), zmq::send_flags::dontwait | zmq::send_flags::sndmore)) return false;
    return socket_.send(zmq::buffer(body), zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

std::optional<wire::Frame> Link::receive() {
  std::vector<std::string> parts;
  bool more = true;
  try {
    while (more) {
      zmq::message_t part;
      if (!socket_.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
      more = part.more();
      if (parts.size() <= parts_max) parts.push_back(part.to_string());
    }
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
  if (parts.size() == 3 && parts.front().empty()) parts.erase(parts.begin());
  if (parts.size() != 2) return wire::Frame{};
  return wire::Frame{std::move(parts[0]), std::move(parts[1])};
}

void Link::wait(std::chrono::milliseconds wait) {
  zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {events_.handle(), 0, ZMQ_POLLIN, 0}};
  try {
    zmq::poll(items, 2, std::max(wait, std::chrono::milliseconds(0)));
  } catch (const zmq::error_t&) {
    // A signal: the caller looks at its clock anyway.
  }
}

bool Link::reconnected() {
  int handshakes = 0;
  try {
    zmq::message_t part;
    while (events_.recv(part, zmq::recv_flags::dontwait))
      if (!part.more()) ++handshakes;
  } catch (const zmq::error_t&) {
    return false;
  }
  if (handshakes == 0) return false;
  return std::exchange(connected_, true) || handshakes > 1;
}

}  // namespace althing::protocol
