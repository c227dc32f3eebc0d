// The pool of KV pages that all KV groups and the sequences of one DP group share. It hands out the lowest free id first, so the same events always
// give the same page tables. Invariant: every page is either free or taken, and free_count() + used() == total().
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::scheduler {

class PagePool {
 public:
  explicit PagePool(std::uint32_t page_count) : total_(page_count), taken_(page_count, false) {}

  std::uint32_t total() const { return total_; }
  std::uint32_t free_count() const { return total_ - used_; }
  std::uint32_t used() const { return used_; }
  bool taken(PageId page) const { return page.value < total_ && taken_[page.value]; }

  // The lowest free page. REQUIRES: free_count() > 0.
  PageId take();
  // REQUIRES: taken(page). A page that is not taken is left alone: giving it back twice would hand it to two sequences.
  void release(PageId page);

 private:
  std::uint32_t total_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t fresh_ = 0;              // pages fresh_ … total_-1 were never taken
  std::vector<std::uint32_t> returned_;  // a min-heap of free pages below fresh_
  std::vector<bool> taken_;
};

}  // namespace althing::scheduler
