// Who has which page, and which cached page makes room first.
#include "scheduler/page_book.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace althing::scheduler {
namespace {

// Blocks of 4 tokens: a page of full attention and one of a window of 4 each.
KvLayout layout(std::uint32_t page_count) { return {page_count, 64, {KvGroup{0, 4, {0}}, KvGroup{4, 4, {1}}}}; }

std::vector<TokenId> block(TokenId first) {
  std::vector<TokenId> tokens(4);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PageBookTest : public testing::Test {
 protected:
  std::vector<PageId> take_block() {
    const PageId full = book_.take();
    return {full, book_.take()};
  }
  void leave(const std::vector<PageId>& pages, std::uint64_t now) {
    for (const PageId page : pages) EXPECT_FALSE(book_.release(page, now));
  }
  // A proven block that nobody has any more.
  PrefixNode cached(PrefixNode parent, TokenId first, std::uint64_t now, bool tail = false) {
    const auto pages = take_block();
    const PrefixNode node = book_.enter(parent, block(first), pages, 1, tail);
    book_.prove(node);
    leave(pages, now);
    return node;
  }
  bool has(PrefixNode node) const { return book_.index().find(node) != nullptr; }
  void expect_sound(std::vector<std::uint32_t> owners) const {
    owners.resize(book_.total(), 0);
    EXPECT_EQ(book_.check(owners, std::vector<bool>(book_.total(), false)), "");
  }

  PageBook book_{layout(6), 100, true};
  PrefixNode root_ = book_.root({});
};

TEST_F(PageBookTest, a_page_that_nobody_owns_is_cached_when_it_is_in_the_index_and_free_otherwise) {
  const auto pages = take_block();
  EXPECT_EQ(book_.used(), 2u);
  leave(pages, 1);
  EXPECT_EQ(book_.cached(), 0u);
  cached(root_, 1, 2);
  EXPECT_EQ(book_.cached(), 2u);
  EXPECT_EQ(book_.used(), 0u);
  EXPECT_EQ(book_.available(), 6u);
  expect_sound({});
}

TEST_F(PageBookTest, windows_that_no_likely_position_needs_make_room_first_and_tails_with_their_block) {
  const PrefixNode first = cached(root_, 1, 1);
  const PrefixNode second = cached(first, 5, 1, true);
  const PrefixNode third = cached(root_, 100, 9);
  book_.take();
  EXPECT_EQ(book_.index().find(first)->pages[1], page_missing) << "left long ago";
  book_.take();
  EXPECT_EQ(book_.index().find(third)->pages[1], page_missing) << "left now, and still of less use than a tail";
  EXPECT_TRUE(has(second));
  book_.take();
  EXPECT_FALSE(has(second)) << "what is deepest";
  EXPECT_TRUE(has(first));
  EXPECT_EQ(book_.index().why_not(first, {}, block(5)), PrefixMiss::evicted);
  EXPECT_EQ(book_.index().why_not(first, {}, block(6)), PrefixMiss::cold);
  EXPECT_EQ(book_.evicted(), 4u);
  for (int i = 0; i < 3; ++i) book_.take();
  EXPECT_EQ(book_.available(), 0u);
  EXPECT_EQ(book_.cached(), 0u);
  expect_sound({1, 1, 1, 1, 1, 1});
}

TEST_F(PageBookTest, an_owned_page_makes_no_room_though_what_is_in_front_of_it_does) {
  const PrefixNode first = cached(root_, 1, 1);
  const auto mine = take_block();
  const PrefixNode second = book_.enter(first, block(5), mine, 2, false);
  while (book_.available() > 0) book_.take();
  EXPECT_FALSE(has(first));
  EXPECT_FALSE(has(second)) << "nobody could reach it";
  EXPECT_EQ(book_.owners(mine[0]), 1u);
  expect_sound({1, 1, 1, 1, 1, 1});
}

TEST_F(PageBookTest, a_tainted_page_leaves_the_index_with_all_behind_it_and_waits_for_its_last_owner) {
  const PrefixNode first = cached(root_, 1, 1);
  cached(first, 5, 1);
  const PageId shared = book_.index().find(first)->pages[0];
  book_.share(shared);
  book_.share(shared);
  book_.taint(shared);
  EXPECT_EQ(book_.index().nodes(), 0u);
  EXPECT_EQ(book_.cached(), 0u);
  EXPECT_FALSE(book_.release(shared, 2));
  EXPECT_TRUE(book_.release(shared, 2)) << "to be scrubbed";
  EXPECT_EQ(book_.used(), 1u);
  book_.scrubbed(shared);
  EXPECT_EQ(book_.available(), 6u);
}

TEST_F(PageBookTest, a_block_that_is_not_proven_is_replaced_by_who_comes_later) {
  const auto one = take_block(), other = take_block();
  const PrefixNode node = book_.enter(root_, block(1), one, 1, false);
  EXPECT_EQ(book_.enter(root_, block(1), other, 2, false), node);
  EXPECT_EQ(book_.index().find(node)->pages, other);
  book_.prove(node);
  EXPECT_EQ(book_.enter(root_, block(1), one, 1, false), node);
  EXPECT_EQ(book_.index().find(node)->pages, other) << "proven: kept";
  leave(one, 3);
  leave(other, 3);
  EXPECT_EQ(book_.cached(), 2u);
  expect_sound({});
}

TEST_F(PageBookTest, children_are_found_by_their_tokens_and_roots_by_their_salt) {
  const PrefixNode node = cached(root_, 1, 1);
  EXPECT_EQ(book_.index().child(root_, block(1)), node);
  EXPECT_EQ(book_.index().child(root_, block(2)), PrefixNode{});
  EXPECT_EQ(book_.index().root({0, 1}), PrefixNode{});
  EXPECT_EQ(book_.index().why_not({}, {0, 1}, block(1)), PrefixMiss::tenant);
  EXPECT_EQ(book_.index().why_not({}, {0, 1}, block(2)), PrefixMiss::cold);
  book_.clear();
  EXPECT_EQ(book_.cached(), 0u);
  EXPECT_EQ(book_.index().root({}), PrefixNode{});
}

TEST(PrefixIndex, a_block_fills_whole_pages_in_every_group) {
  const PrefixIndex index({8, 64, {KvGroup{0, 6, {0}}, KvGroup{5, 4, {1}}}}, 100);
  EXPECT_EQ(index.shape().block_tokens, 12u);
  EXPECT_EQ(index.shape().places, 2u + 3u);
  EXPECT_FALSE(PrefixIndex({8, 64, {KvGroup{0, 7, {0}}, KvGroup{0, 16, {1}}}}, 100).usable()) << "longer than any request";
}

}  // namespace
}  // namespace althing::scheduler
