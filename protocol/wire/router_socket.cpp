// See the header. The only server-side file that knows ZeroMQ.
#include "protocol/wire/router_socket.hpp"

#include <capnp/common.h>

#include <cerrno>
#include <charconv>
#include <iterator>
#include <utility>
#include <zmq.hpp>
#include <zmq_addon.hpp>

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

}  // namespace

Status RouterSocket::check(const std::string& endpoint) {
  const auto refuse = [&](const std::string& why) -> Status {
    return Error{ErrorCode::invalid_argument, "cannot listen on '" + endpoint + "': " + why + ", e.g. --bind tcp://127.0.0.1:4550", "bind"};
  };
  if (!endpoint.starts_with("tcp://")) return refuse("use tcp://HOST:PORT");
  const std::string address = endpoint.substr(6);
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return refuse("the port is missing; use tcp://HOST:PORT");
  const std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  // There is no encryption or authentication on this socket yet, so nothing but loopback is offered.
  if (host != "localhost" && host != "[::1]" && !(host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos))
    return refuse("only loopback addresses are allowed, because the protocol is not encrypted; put a tunnel in front for other hosts");
  unsigned number = 0;
  const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (code != std::errc{} || end != port.data() + port.size() || number > 65535) return refuse("'" + port + "' is not a port");
  return Ok{};
}

struct RouterSocket::State {
  zmq::context_t context;
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::string endpoint;
};

RouterSocket::RouterSocket(std::unique_ptr<State> state) : state_(std::move(state)) {}
RouterSocket::RouterSocket(RouterSocket&&) noexcept = default;
RouterSocket& RouterSocket::operator=(RouterSocket&&) noexcept = default;
RouterSocket::~RouterSocket() = default;

Result<RouterSocket> RouterSocket::bind(const std::string& endpoint, const Limits& limits) {
  if (auto status = check(endpoint); !status) return status.error();
  try {
    auto state = std::make_unique<State>();
    set_options(state->socket, endpoint, limits);
    state->socket.bind(endpoint);
    state->endpoint = state->socket.get(zmq::sockopt::last_endpoint);
    return RouterSocket(std::move(state));
  } catch (const zmq::error_t& error) {
    std::string what = "cannot listen on " + endpoint + ": " + error.what();
    if (error.num() == EADDRINUSE) what += "; another server uses this port: stop it, or choose another with --bind (port 0 picks a free one)";
    return Error{ErrorCode::io, what, "bind"};
  }
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

std::optional<std::vector<std::string>> RouterSocket::receive() {
  std::vector<zmq::message_t> parts;
  try {
    if (!zmq::recv_multipart(state_->socket, std::back_inserter(parts), zmq::recv_flags::dontwait)) return std::nullopt;
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
  std::vector<std::string> frames;
  for (const zmq::message_t& part : parts) frames.emplace_back(part.to_string_view());
  return frames;
}

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
