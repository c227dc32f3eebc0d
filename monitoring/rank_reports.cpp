// See the header: the run of a rank is decided for the whole report, never cell by cell, so a restarted rank cannot be counted half.
#include "monitoring/rank_reports.hpp"

#include <algorithm>
#include <functional>

namespace althing::monitoring {

std::span<const std::uint64_t> RankReports::gained(std::uint32_t rank, std::span<const std::uint64_t> cumulative) {
  if (rank >= last_.size() || cumulative.size() != gained_.size()) return {};
  std::vector<std::uint64_t>& last = last_[rank];
  if (!std::equal(cumulative.begin(), cumulative.end(), last.begin(), std::greater_equal<>())) last.assign(last.size(), 0);
  for (std::size_t cell = 0; cell < last.size(); ++cell) gained_[cell] = cumulative[cell] - last[cell];
  std::copy(cumulative.begin(), cumulative.end(), last.begin());
  return gained_;
}

void RankReports::rank_lost(std::uint32_t rank) {
  if (rank < last_.size()) last_[rank].assign(last_[rank].size(), 0);
}

}  // namespace althing::monitoring
