// All of ZeroMQ that the client needs. Options whose defaults hurt are set here: bounded linger, heartbeats on the connection (a cable that was
// pulled is noticed), a bound on what the peer may announce, quick reconnection. Exceptions of cppzmq end in this file. The socket stays with the
// thread that polls; ZeroMQ's own thread does the TCP work meanwhile.
#include "protocol/client/link.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
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
constexpr int events_heard = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                             ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;

}  // namespace

Result<Link> Link::open(const std::string& endpoint, std::size_t frame_bytes_max, const std::shared_ptr<const curve::ClientKeys>& keys) {
  try {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, linger_ms);
    socket.set(zmq::sockopt::heartbeat_ivl, heartbeat_ms);
    socket.set(zmq::sockopt::heartbeat_timeout, heartbeat_timeout_ms);
    socket.set(zmq::sockopt::reconnect_ivl, reconnect_ms);
    socket.set(zmq::sockopt::reconnect_ivl_max, reconnect_ms_max);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(frame_bytes_max));
    if (endpoint.starts_with("tcp://[")) socket.set(zmq::sockopt::ipv6, true);
    if (keys) curve::use_keys(socket, keys->server, keys->own);
    // Whoever waits for a ping's answer to learn that the server was restarted waits a second too long.
    if (zmq_socket_monitor(socket.handle(), events_endpoint, events_heard) != 0) throw zmq::error_t();
    zmq::socket_t events(context, zmq::socket_type::pair);
    events.connect(events_endpoint);
    socket.connect(endpoint);
    Link link(std::move(context), std::move(socket), std::move(events));
    link.encrypted_ = keys != nullptr;
    return link;
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

std::array<int, 2> Link::descriptors() const { return {socket_.get(zmq::sockopt::fd), events_.get(zmq::sockopt::fd)}; }

bool Link::has_input() const {
  try {
    return ((socket_.get(zmq::sockopt::events) | events_.get(zmq::sockopt::events)) & ZMQ_POLLIN) != 0;
  } catch (const zmq::error_t&) {
    return false;
  }
}

// An event is a number and a value, and the endpoint behind them.
void Link::hear_events() {
  try {
    zmq::message_t part;
    while (events_.recv(part, zmq::recv_flags::dontwait)) {
      std::uint16_t event = 0;
      if (!part.more() || part.size() < sizeof event) continue;
      std::memcpy(&event, part.data(), sizeof event);
      if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) up_ = true, ++handshakes_;
      if (event == ZMQ_EVENT_DISCONNECTED) up_ = false;
      if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) broken_off_ = true;
      if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        refusal_ = Error{ErrorCode::denied, "the server does not let this key in; ask its operator to allow it (`althing keys allow`)", "key"};
      if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        refusal_ = Error{ErrorCode::denied,
                         encrypted_ ? "this server speaks without encryption, and keys were given; leave them out, or name another server"
                                    : "this server lets nobody in without a key; give its public one and your own (--server-key, --key)",
                         "key"};
    }
  } catch (const zmq::error_t&) {
    // What was heard so far counts.
  }
}

bool Link::reconnected() {
  hear_events();
  const int handshakes = std::exchange(handshakes_, 0);
  if (handshakes == 0) return false;
  return std::exchange(connected_, true) || handshakes > 1;
}

const std::optional<Error>& Link::refusal() {
  hear_events();
  return refusal_;
}

bool Link::handshakes_fail() {
  hear_events();
  return broken_off_;
}

}  // namespace althing::protocol
