// Peaks are tabulated once: with windows the need at one position is not monotone, and a closed form over all groups would only be a bound,
// which would refuse requests that fit exactly. Invariant: the table is ascending and every entry is within the pool.
#include "scheduler/page_needs.hpp"

#include <algorithm>

namespace althing::scheduler {

PageNeeds::PageNeeds(const KvLayout& layout, std::uint32_t positions_max) {
  std::uint64_t peak = 0;
  for (std::uint32_t position = 0; position < positions_max; ++position) {
    std::uint64_t need = 0;
    for (const KvGroup& group : layout.groups) need += position / group.tokens_per_page - first_page_read(group, position) + 1;
    peak = std::max(peak, need);
    if (peak > layout.page_count) break;
    peaks_.push_back(static_cast<std::uint32_t>(peak));
  }
}

std::uint32_t PageNeeds::peak(std::uint32_t token_count) const {
  if (token_count == 0 || peaks_.empty()) return 0;
  return peaks_[std::min<std::size_t>(token_count, peaks_.size()) - 1];
}

}  // namespace althing::scheduler
