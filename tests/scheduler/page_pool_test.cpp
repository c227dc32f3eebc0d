// The pool and the needs: the lowest page first, nothing given out twice, and the tabulated needs equal to counting by hand.
#include "scheduler/page_pool.hpp"

#include <gtest/gtest.h>

#include <set>

#include "scheduler/page_needs.hpp"

namespace althing::tests {
namespace {

using scheduler::PageNeeds;
using scheduler::PagePool;

TEST(PagePool, gives_the_lowest_free_page_whatever_the_order_of_return) {
  PagePool pool(5);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(pool.take(), PageId{i});
  for (const std::uint32_t i : {2u, 0u, 3u}) pool.release(PageId{i});
  EXPECT_EQ(pool.free_count(), 4u);
  for (const std::uint32_t i : {0u, 2u, 3u, 4u}) EXPECT_EQ(pool.take(), PageId{i});
  EXPECT_EQ(pool.free_count(), 0u);
  EXPECT_EQ(pool.used(), 5u);
}

TEST(PagePool, a_page_returned_twice_or_never_taken_changes_nothing) {
  PagePool pool(3);
  const PageId page = pool.take();
  pool.release(page);
  pool.release(page);
  pool.release(PageId{2});
  pool.release(PageId{77});
  EXPECT_EQ(pool.free_count(), 3u);
  std::set<PageId> seen;
  while (pool.free_count() > 0) seen.insert(pool.take());
  EXPECT_EQ(seen.size(), 3u);
}

// Pages touched by the positions that `position` attends to, one by one.
std::uint32_t pages_by_hand(const KvLayout& layout, std::uint32_t position) {
  std::uint32_t sum = 0;
  for (const KvGroup& group : layout.groups) {
    std::set<std::uint32_t> pages;
    for (std::uint32_t key = 0; key <= position; ++key)
      if (group.window == 0 || key + group.window > position) pages.insert(key / group.tokens_per_page);
    sum += static_cast<std::uint32_t>(pages.size());
  }
  return sum;
}

TEST(PageNeeds, equal_counting_by_hand_for_every_window_and_page_size) {
  for (std::uint32_t window = 0; window <= 12; ++window)
    for (std::uint32_t per_page = 1; per_page <= 5; ++per_page) {
      const KvLayout layout{1000, 64, {KvGroup{window, per_page, {0}}, KvGroup{3, 2, {1}}}};
      const PageNeeds needs(layout, 40);
      ASSERT_EQ(needs.positions_fitting(), 40u);
      std::uint32_t most = 0;
      for (std::uint32_t count = 1; count <= 40; ++count) {
        most = std::max(most, pages_by_hand(layout, count - 1));
        EXPECT_EQ(needs.peak(count), most) << "window " << window << ", " << per_page << " a page, " << count << " tokens";
      }
    }
}

TEST(PageNeeds, stop_where_the_pool_ends) {
  const KvLayout layout{5, 64, {KvGroup{0, 4, {0}}}};
  const PageNeeds needs(layout, 100);
  EXPECT_EQ(needs.positions_fitting(), 20u);
  EXPECT_EQ(needs.peak(20), 5u);
  EXPECT_EQ(needs.peak(0), 0u);
}

}  // namespace
}  // namespace althing::tests
