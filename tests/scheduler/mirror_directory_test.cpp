// Who gets a slot, who gives it up, and that both are the same every time.
#include "scheduler/mirror_directory.hpp"

#include <gtest/gtest.h>

namespace althing::scheduler {
namespace {

constexpr PageKey key(std::uint64_t n) { return {n, n}; }
constexpr MirrorSlot slot(std::uint32_t n) { return MirrorSlot{n}; }

TEST(MirrorDirectory, free_slots_go_first_then_the_page_that_was_idle_longest) {
  MirrorDirectory d(3);
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(d.take(key(n)), slot(static_cast<std::uint32_t>(n - 1)));
  EXPECT_EQ(d.take(key(4)), std::nullopt) << "all are claimed";
  d.unclaim(slot(1));
  d.unclaim(slot(0));
  EXPECT_EQ(d.used(), 3u) << "idle pages stay until somebody wants the place";
  EXPECT_EQ(d.take(key(4)), slot(1));
  EXPECT_EQ(d.find(key(2)), std::nullopt);
  EXPECT_EQ(d.find(key(1)), slot(0));
  EXPECT_EQ(d.check({{slot(1), 1}, {slot(2), 1}}), "");
}

TEST(MirrorDirectory, a_claimed_page_is_not_idle_again_before_its_last_claim_ends) {
  MirrorDirectory d(1);
  d.take(key(1));
  d.claim(slot(0));
  d.unclaim(slot(0));
  EXPECT_EQ(d.take(key(2)), std::nullopt);
  d.unclaim(slot(0));
  d.claim(slot(0));
  EXPECT_EQ(d.take(key(2)), std::nullopt);
  d.unclaim(slot(0));
  EXPECT_EQ(d.take(key(2)), slot(0));
}

TEST(MirrorDirectory, a_forgotten_slot_is_free) {
  MirrorDirectory d(2);
  d.take(key(1));
  d.unclaim(slot(0));
  d.forget(slot(0));
  EXPECT_EQ(d.find(key(1)), std::nullopt);
  EXPECT_EQ(d.used(), 0u);
  EXPECT_EQ(d.take(key(1)), slot(0));
  EXPECT_EQ(d.check({{slot(0), 1}}), "");
}

TEST(MirrorDirectory, what_ranks_report_is_taken_as_far_as_it_can_be) {
  MirrorDirectory d(5);
  d.take(key(9));
  d.clear();
  d.assume(slot(1), key(1));
  d.assume(slot(3), key(3));
  d.assume(slot(3), key(4));  // a slot for the second time
  d.assume(slot(4), key(1));  // a key for the second time
  d.assume(slot(5), key(5));  // no such slot
  EXPECT_EQ(d.used(), 2u);
  EXPECT_EQ(d.find(key(1)), slot(1));
  EXPECT_EQ(d.find(key(3)), slot(3));
  EXPECT_EQ(d.find(key(9)), std::nullopt);
  EXPECT_EQ(d.check({}), "");
  for (std::uint64_t n = 10; n < 13; ++n) EXPECT_TRUE(d.take(key(n)));
  EXPECT_EQ(d.used(), 5u) << "the holes are filled before anything is given up";
  EXPECT_EQ(d.take(key(20)), slot(1)) << "then the oldest of what was reported";
}

TEST(MirrorDirectory, the_check_finds_what_does_not_add_up) {
  MirrorDirectory d(2);
  d.take(key(1));
  EXPECT_NE(d.check({}), "");
  EXPECT_NE(d.check({{slot(0), 2}}), "");
  EXPECT_NE(d.check({{slot(0), 1}, {slot(1), 1}}), "");
  EXPECT_EQ(d.check({{slot(0), 1}}), "");
}

}  // namespace
}  // namespace althing::scheduler
