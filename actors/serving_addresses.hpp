// The two addresses that a server listens on, looked at before anything is started: text that cannot be an address is one kind of mistake, an address
// that somebody else has is another. `serve` refuses by this, and `doctor` tells of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "monitoring/loopback_address.hpp"

namespace althing::actors {

struct ServingAddress {
  const char* flag;  // bind or metrics
  monitoring::LoopbackAddress address;
};

// Those that `bind` and `metrics` name; a metrics address that is empty is none. Errors: invalid_argument, with the flag.
Result<std::vector<ServingAddress>> serving_addresses(const std::string& bind, const std::string& metrics);

// Whether somebody could listen there now. Port 0 always can. Errors: io, with the flag and what to do.
Status check_free(const ServingAddress& address);

}  // namespace althing::actors
