// How many pages a sequence needs, from the layout alone. One place computes it, so that admission, planning and the invariants agree:
// a request is accepted only if peak() says that it fits the pool when it runs alone, and planning never needs more than that.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/kv_layout.hpp"

namespace althing::scheduler {

// The first page of a group's table that computing `position` still reads.
constexpr std::uint32_t first_page_read(const KvGroup& group, std::uint32_t position) {
  if (group.window == 0 || position < group.window) return 0;
  return (position + 1 - group.window) / group.tokens_per_page;
}

// Pages that a group's table has when positions 0 … token_count-1 have a place.
constexpr std::uint32_t pages_covering(const KvGroup& group, std::uint32_t token_count) {
  return token_count == 0 ? 0 : (token_count - 1) / group.tokens_per_page + 1;
}

class PageNeeds {
 public:
  // REQUIRES: every group holds at least one token a page.
  PageNeeds(const KvLayout& layout, std::uint32_t positions_max);

  // The largest number of tokens whose KV one sequence can ever hold, computed one by one with the pool to itself; positions_max at most.
  std::uint32_t positions_fitting() const { return static_cast<std::uint32_t>(peaks_.size()); }

  // The most pages held at once, all groups together, while positions 0 … token_count-1 are computed one by one. Counts beyond
  // positions_fitting() are answered as that.
  std::uint32_t peak(std::uint32_t token_count) const;

 private:
  std::vector<std::uint32_t> peaks_;  // [token_count - 1]
};

}  // namespace althing::scheduler
