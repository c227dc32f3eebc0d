// The free list is a heap of returned pages and a frontier of pages never used: taking and returning are O(log pages), and start-up
// does not touch a list of a million pages. Invariant: every returned page lies below the frontier, so the heap's top is the lowest.
#include "scheduler/page_pool.hpp"

#include <algorithm>
#include <functional>

namespace althing::scheduler {

PageId PagePool::take() {
  std::uint32_t page = fresh_;
  if (returned_.empty()) {
    ++fresh_;
  } else {
    std::pop_heap(returned_.begin(), returned_.end(), std::greater<>{});
    page = returned_.back();
    returned_.pop_back();
  }
  taken_[page] = true;
  ++used_;
  return PageId{page};
}

void PagePool::release(PageId page) {
  if (!taken(page)) return;
  taken_[page.value] = false;
  --used_;
  returned_.push_back(page.value);
  std::push_heap(returned_.begin(), returned_.end(), std::greater<>{});
}

}  // namespace althing::scheduler
