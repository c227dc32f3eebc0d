// Reads HOST:PORT for a listener that must not be reachable from other machines. Metrics carry no authentication, so a host is accepted only when it
// names this machine's loopback: 127.0.0.0/8, ::1 (in brackets) or localhost, which is read as 127.0.0.1 without asking a resolver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::monitoring {

struct LoopbackAddress {
  std::string host;  // numeric, ::1 without brackets
  std::uint16_t port = 0;

  bool is_ipv6() const { return host == "::1"; }
  std::string text() const;  // HOST:PORT, ::1 in brackets

  friend bool operator==(const LoopbackAddress&, const LoopbackAddress&) = default;
};

// Errors: invalid_argument, naming what was wrong with the host or the port.
Result<LoopbackAddress> parse_loopback_address(std::string_view text);

// Tries to listen there and closes again; the error says who or what is in the way and what to do. Errors: io.
Status check_can_listen(const LoopbackAddress& address);

// Connects and hangs up at once, to wake whoever listens there. What comes of it does not matter.
void knock(const LoopbackAddress& address);

}  // namespace althing::monitoring
