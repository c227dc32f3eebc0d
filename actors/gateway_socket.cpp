// The gateway's socket: every option whose default hurts is set here, before bind.
#include <charconv>

#include "actors/gateway_actor.hpp"

namespace althing::actors {
namespace {

Status check_endpoint(const std::string& endpoint) {
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

}  // namespace

Result<BoundSocket> bind_gateway(zmq::context_t& context, const std::string& endpoint, const Limits& limits) {
  if (auto status = check_endpoint(endpoint); !status) return status.error();
  try {
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::router_mandatory, true);
    socket.set(zmq::sockopt::router_handover, false);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(limits.frame_bytes_max));
    socket.set(zmq::sockopt::sndhwm, 1000);
    socket.set(zmq::sockopt::rcvhwm, 1000);
    socket.set(zmq::sockopt::handshake_ivl, 2000);
    socket.set(zmq::sockopt::heartbeat_ivl, 1000);
    socket.set(zmq::sockopt::heartbeat_timeout, 3000);
    socket.set(zmq::sockopt::heartbeat_ttl, 6000);
    socket.set(zmq::sockopt::linger, 500);
    if (endpoint.starts_with("tcp://[")) socket.set(zmq::sockopt::ipv6, true);
    socket.bind(endpoint);
    std::string bound = socket.get(zmq::sockopt::last_endpoint);
    return BoundSocket{std::move(socket), std::move(bound)};
  } catch (const zmq::error_t& error) {
    std::string what = "cannot listen on " + endpoint + ": " + error.what();
    if (error.num() == EADDRINUSE) what += "; another server uses this port: stop it, or choose another with --bind (port 0 picks a free one)";
    return Error{ErrorCode::io, what, "bind"};
  }
}

}  // namespace althing::actors
