// See the header.
#include "actors/descriptor_reserve.hpp"

#include <fcntl.h>
#include <sys/resource.h>

namespace althing::actors {
namespace {

Descriptor open_one() { return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool DescriptorReserve::exhausted() {
  if (open_one()) return false;
  kept_.clear();
  return true;
}

bool DescriptorReserve::refill() {
  kept_.clear();
  for (std::size_t i = 0; i < 2 * size_; ++i) {
    kept_.push_back(open_one());
    if (kept_.back()) continue;
    kept_.clear();
    return false;
  }
  kept_.resize(size_);
  return true;
}

}  // namespace althing::actors
