// Descriptors kept back for when clients have taken all others: without one, probes and scrapes could not come in to be told so, and whoever listens
// would be woken for ever by connections that it cannot take.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/control_channel.hpp"

namespace althing::actors {

// As many descriptors as the user's hard limit allows.
void raise_descriptor_limit();

class DescriptorReserve {
 public:
  explicit DescriptorReserve(std::size_t size) : size_(size) { refill(); }

  // True when the process can open none: the reserve is given back then, and is empty until refill().
  bool exhausted();
  // Takes the reserve anew, if as many are left besides. False, and nothing is taken, where they are not.
  bool refill();

 private:
  std::size_t size_;
  std::vector<Descriptor> kept_;
};

}  // namespace althing::actors
