// See the header. The only server-side file that knows ZeroMQ.
#include "protocol/wire/router_socket.hpp"

#include <arpa/inet.h>
#include <capnp/common.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "protocol/curve/door.hpp"
#include "protocol/wire/connections.hpp"

namespace althing::protocol::wire {
namespace {

void set_options(zmq::socket_t& socket, const std::string& endpoint, const Limits& limits) {
  socket.set(zmq::sockopt::router_mandatory, true);
  socket.set(zmq::sockopt::router_handover, false);
  // libzmq drops a connection without a word for a frame over its own limit: leave room to answer those that are only somewhat too large.
  socket.set(zmq::sockopt::maxmsgsize, 4 * static_cast<std::int64_t>(limits.frame_bytes_max));
  socket.set(zmq::sockopt::sndhwm, 1000);
  socket.set(zmq::sockopt::rcvhwm, 1000);
  socket.set(zmq::sockopt::handshake_ivl, 2000);
  socket.set(zmq::sockopt::heartbeat_ivl, 1000);
  socket.set(zmq::sockopt::heartbeat_timeout, 3000);
  socket.set(zmq::sockopt::heartbeat_ttl, 6000);
  socket.set(zmq::sockopt::linger, 500);
  if (endpoint.starts_with("tcp://[")) socket.set(zmq::sockopt::ipv6, true);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" || (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

// An address that nobody has to be asked about: a name could mean another interface tomorrow.
bool is_numeric(const std::string& host) {
  in6_addr address{};
  if (host.starts_with('[') && host.ends_with(']')) return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
  return host == "*" || ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

std::uint16_t port_of(const std::string& endpoint) {
  return static_cast<std::uint16_t>(std::strtoul(endpoint.c_str() + endpoint.rfind(':') + 1, nullptr, 10));
}

}  // namespace

Status RouterSocket::check(const std::string& endpoint, bool encrypted) {
  const auto refuse = [&](const std::string& why) -> Status {
    return Error{ErrorCode::invalid_argument, "cannot listen on '" + endpoint + "': " + why + ", e.g. --bind tcp://127.0.0.1:4550", "bind"};
  };
  if (!endpoint.starts_with("tcp://")) return refuse("use tcp://HOST:PORT");
  const std::string address = endpoint.substr(6);
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return refuse("the port is missing; use tcp://HOST:PORT");
  const std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (!is_loopback(host) && !encrypted)
    return refuse(
        "without keys only loopback addresses are allowed, because anybody could read and ask; give --curve-key and --curve-allow "
        "(docs/security-keys.md) to serve other hosts, or use a loopback address");
  if (!is_loopback(host) && !is_numeric(host)) return refuse("the host is a name; use the interface's address, or * for all of them");
  unsigned number = 0;
  const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (code != std::errc{} || end != port.data() + port.size() || number > 65535) return refuse("'" + port + "' is not a port");
  return Ok{};
}

struct RouterSocket::State {
  zmq::context_t context;
  std::unique_ptr<curve::ZapHandler> handler;  // in this context, and there before the socket can be reached
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::string endpoint;
  bool keys = false;
};

namespace {

// Starts the handler, then makes the socket a door, then tries it where nobody else can find it.
Status secure(zmq::context_t& context, zmq::socket_t& socket, std::unique_ptr<curve::ZapHandler>& handler, const RouterKeys& keys) {
  auto started = curve::ZapHandler::start(context, [ring = keys.ring, told = keys.on_answer](const curve::ZapFrames& request) {
    curve::ZapAnswer answer = curve::zap_answer(request, *ring);
    if (told) told(answer.result);
    return std::move(answer.frames);
  });
  if (!started) return started.error();
  handler = std::move(*started);
  if (auto status = curve::make_door(socket, *keys.server); !status) return status;
  socket.bind("tcp://127.0.0.1:*");
  const std::string hidden = socket.get(zmq::sockopt::last_endpoint);
  Status tried = curve::try_door(hidden, keys.server->public_key(), *keys.listed);
  socket.unbind(hidden);
  return tried;
}

}  // namespace

RouterSocket::RouterSocket(std::unique_ptr<State> state) : state_(std::move(state)) {}
RouterSocket::RouterSocket(RouterSocket&&) noexcept = default;
RouterSocket& RouterSocket::operator=(RouterSocket&&) noexcept = default;
RouterSocket::~RouterSocket() = default;

Result<RouterSocket> RouterSocket::bind(const std::string& endpoint, const Limits& limits, const std::optional<RouterKeys>& keys) {
  if (auto status = check(endpoint, keys.has_value()); !status) return status.error();
  try {
    auto state = std::make_unique<State>();
    set_options(state->socket, endpoint, limits);
    state->keys = keys.has_value();
    if (auto status = keys ? secure(state->context, state->socket, state->handler, *keys) : Status(Ok{}); !status) return status.error();
    state->socket.bind(endpoint);
    state->endpoint = state->socket.get(zmq::sockopt::last_endpoint);
    return RouterSocket(std::move(state));
  } catch (const zmq::error_t& error) {
    std::string what = "cannot listen on " + endpoint + ": " + error.what();
    if (error.num() == EADDRINUSE) what += "; another server uses this port: stop it, or choose another with --bind (port 0 picks a free one)";
    return Error{ErrorCode::io, what, "bind"};
  }
}

void RouterSocket::close_door() {
  try {
    state_->socket.unbind(state_->endpoint);
  } catch (const zmq::error_t&) {  // it is closed already
  }
}

Status RouterSocket::open_door() {
  try {
    state_->socket.bind(state_->endpoint);
  } catch (const zmq::error_t& error) {
    return Error{ErrorCode::io, "cannot listen on " + state_->endpoint + " again: " + error.what(), "bind"};
  }
  return Ok{};
}

const std::string& RouterSocket::endpoint() const { return state_->endpoint; }

RouterSocket::Readable RouterSocket::wait(int wakeup, std::chrono::milliseconds time) const {
  zmq_pollitem_t items[2] = {{state_->socket.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wakeup, ZMQ_POLLIN, 0}};
  try {
    zmq::poll(items, 2, time);
  } catch (const zmq::error_t&) {
    return {};  // interrupted by a signal: the caller's loop comes again
  }
  return {items[0].revents != 0, items[1].revents != 0};
}

std::optional<RouterSocket::Received> RouterSocket::receive() {
  std::vector<zmq::message_t> parts;
  try {
    if (!zmq::recv_multipart(state_->socket, std::back_inserter(parts), zmq::recv_flags::dontwait)) return std::nullopt;
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
  Received received;
  for (const zmq::message_t& part : parts) received.frames.emplace_back(part.to_string_view());
  if (!state_->keys || parts.empty()) return received;
  // What the ZAP handler and ZeroMQ's engine said of the connection. "__fd" is behind ZMQ_SRCFD, which the manual calls deprecated and has no other
  // name for.
  if (const char* key = zmq_msg_gets(parts.back().handle(), "User-Id")) received.key = key;
  if (const char* connection = zmq_msg_gets(parts.back().handle(), "__fd")) received.connection = std::atoi(connection);
  return received;
}

std::size_t RouterSocket::cut_all_but(const std::vector<int>& connections) const { return cut_connections(port_of(state_->endpoint), connections); }

RouterSocket::Sent RouterSocket::send(std::string_view route, bool delimiter, std::string_view header, std::string_view body) {
  std::vector<zmq::const_buffer> parts{zmq::buffer(route)};
  if (delimiter) parts.emplace_back();
  parts.push_back(zmq::buffer(header));
  parts.push_back(zmq::buffer(body));
  try {
    return zmq::send_multipart(state_->socket, parts, zmq::send_flags::dontwait) ? Sent::sent : Sent::full;
  } catch (const zmq::error_t& error) {
    return error.num() == EHOSTUNREACH ? Sent::gone : Sent::full;
  }
}

std::string library_versions() {
  const auto [major, minor, patch] = zmq::version();
  return "ZeroMQ " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch) + ", Cap'n Proto " +
         std::to_string(CAPNP_VERSION / 1000000) + "." + std::to_string(CAPNP_VERSION / 1000 % 1000) + "." + std::to_string(CAPNP_VERSION % 1000);
}

}  // namespace althing::protocol::wire
