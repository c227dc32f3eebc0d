// The TCP connections of one listener in this process, which ZeroMQ counts but cannot close.
#pragma once

#include <cstdint>
#include <vector>

namespace althing::protocol::wire {

// Ends those that came in at the local port, all but the descriptors `keep`; ZeroMQ then sees peers that hung up. Returns how many. One that is made
// meanwhile may be ended too, and is made anew by its client.
std::size_t cut_connections(std::uint16_t port, const std::vector<int>& keep);

}  // namespace althing::protocol::wire
