// The two addresses that a server listens on, looked at before anything is started: text that cannot be an address is one kind of mistake, an address
// that somebody else has is another. `serve` refuses by this, and `doctor` tells of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "monitoring/loopback_address.hpp"

namespace althing::actors {

struct ServingAddress {
  const char* flag;  // bind or metrics
  std::string text;  // HOST:PORT
  std::uint16_t port = 0;
  std::optional<monitoring::LoopbackAddress> loopback;  // nullopt: other machines can reach it
};

// Those that `bind` and `metrics` name; a metrics address that is empty is none. `encrypted`: clients need keys, so `bind` may be any interface's.
// Errors: invalid_argument, with the flag.
Result<std::vector<ServingAddress>> serving_addresses(const std::string& bind, const std::string& metrics, bool encrypted);

// Whether somebody could listen there now. Port 0 always can. Errors: io, with the flag and what to do.
Status check_free(const ServingAddress& address);

}  // namespace althing::actors
