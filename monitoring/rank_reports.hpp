// What ranks gained since they last reported, where counts are polled: a rank's process may die and start again from zero, and what it had counted
// stays counted. A report with any number below its predecessor starts a new run of that rank, and so does the first report after `rank_lost`. What a
// rank counted between its last report and its death is lost; counts that come with steps have no such gap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace althing::monitoring {

class RankReports {
 public:
  RankReports(std::uint32_t ranks, std::size_t cells) : last_(ranks, std::vector<std::uint64_t>(cells)), gained_(cells) {}

  // By cell; empty when the rank or the size is not of this grid. Valid until the next call.
  std::span<const std::uint64_t> gained(std::uint32_t rank, std::span<const std::uint64_t> cumulative);
  // The rank's next report counts from zero.
  void rank_lost(std::uint32_t rank);

 private:
  std::vector<std::vector<std::uint64_t>> last_;  // by rank
  std::vector<std::uint64_t> gained_;
};

}  // namespace althing::monitoring
