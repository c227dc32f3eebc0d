// Where the HTTP gateway listens: HOST:PORT, an address of this machine. Unlike the monitor's, it may be one that others reach, if callers need keys.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

struct HttpAddress {
  std::string host;  // numeric, IPv6 without brackets
  std::uint16_t port = 0;
  bool loopback = true;
};

// `has_keys`: whether callers need an API key. `flag` is named in errors. Errors: invalid_argument, for what is no address, and for one that other
// machines reach while nobody needs a key.
Result<HttpAddress> http_address(const std::string& text, bool has_keys, const std::string& flag);

}  // namespace althing::actors
