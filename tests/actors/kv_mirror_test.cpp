// What the core hears of the mirrors of several ranks.
#include "actors/kv_mirror.hpp"

#include <gtest/gtest.h>

namespace althing::actors {
namespace {

constexpr PageKey seed{1, 2};

MirroredPage page(std::uint32_t group, std::uint32_t slot, std::uint64_t key) { return {DpGroup{group}, MirrorSlot{slot}, {key, key}}; }

TEST(MirrorAgreement, only_what_every_rank_of_a_group_has) {
  const std::vector<MirrorReport> reports{{seed, {page(0, 1, 11), page(0, 2, 12), page(0, 4, 14)}},
                                          {seed, {page(0, 1, 11), page(0, 3, 13), page(0, 4, 99)}}};
  EXPECT_EQ(agree(reports, 2), (std::vector<MirroredPage>{page(0, 1, 11)}));
}

TEST(MirrorAgreement, groups_do_not_ask_each_other) {
  const std::vector<MirrorReport> reports{{seed, {page(0, 1, 11)}}, {seed, {page(1, 1, 21), page(1, 2, 22)}}};
  EXPECT_EQ(agree(reports, 1), (std::vector<MirroredPage>{page(0, 1, 11), page(1, 1, 21), page(1, 2, 22)}));
}

TEST(MirrorAgreement, a_rank_with_another_secret_or_of_another_group_has_nothing) {
  const std::vector<MirrorReport> secret{{seed, {page(0, 1, 11)}}, {{9, 9}, {page(0, 1, 11)}}};
  EXPECT_TRUE(agree(secret, 2).empty());
  const std::vector<MirrorReport> moved{{seed, {page(1, 1, 11)}}};
  EXPECT_TRUE(agree(moved, 1).empty());
}

TEST(MirrorAgreement, no_mirror_at_all) { EXPECT_TRUE(agree({{}, {}}, 2).empty()); }

}  // namespace
}  // namespace althing::actors
