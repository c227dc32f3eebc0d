// Placement as arithmetic: every grid of 1 to 8 ranks for the published shapes is placed or refused as a rule written down here says, and a placement
// holds every head of a group once, every expert as often as asked, and every token's work once.
#include "scheduler/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

namespace althing::scheduler {
namespace {

constexpr ModelShape shape_20b{64, 8, 32, 201'088};
constexpr ModelShape shape_120b{64, 8, 128, 201'088};
constexpr ModelShape shape_tiny{4, 2, 8, 2304};

std::vector<ExpertId> ids(std::initializer_list<std::uint32_t> numbers) {
  std::vector<ExpertId> experts;
  for (const std::uint32_t n : numbers) experts.push_back(ExpertId{n});
  return experts;
}

void expect_refused(const Grid& grid, const ModelShape& model, const char* field, const std::string& why) {
  const auto placements = place(grid, model);
  ASSERT_FALSE(placements.ok()) << why;
  EXPECT_EQ(placements.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(placements.error().field, field);
  EXPECT_NE(placements.error().message.find(why), std::string::npos) << placements.error().message;
}

// Heads of each group join to the whole model, once; the head's rows over all ranks.
void expect_heads_whole(const Grid& grid, const ModelShape& model, const std::vector<RankPlacement>& placements) {
  std::uint32_t vocabulary = 0;
  for (std::uint32_t rank = 0; rank < grid.world; ++rank) {
    const RankPlacement& p = placements[rank];
    ASSERT_EQ(p.rank.value, rank);
    ASSERT_EQ(p.world, grid.world);
    ASSERT_EQ(p.dp, grid.dp);
    ASSERT_EQ(p.tp(), grid.tp);
    ASSERT_EQ(p.dp_group.value, rank / grid.tp);
    const std::uint32_t heads = model.query_heads / grid.tp;
    ASSERT_EQ(p.query_heads, (Range{rank % grid.tp * heads, (rank % grid.tp + 1) * heads}));
    const std::uint32_t reads = model.query_heads / model.kv_heads;
    ASSERT_EQ(p.kv_heads.begin, p.query_heads.begin / reads);
    ASSERT_EQ(p.kv_heads.size(), std::max(1u, model.kv_heads / grid.tp));
    ASSERT_EQ(p.vocabulary.begin, vocabulary);
    vocabulary = p.vocabulary.end;
    ASSERT_LE(p.vocabulary.size() - model.vocabulary / grid.world, 1u);
  }
  ASSERT_EQ(vocabulary, model.vocabulary);
}

// Each expert has world / ep copies and one for each replica, on different ranks; slots and table say the same; ranks differ by `spread` slots at
// most.
void expect_experts_placed(const Grid& grid, const ModelShape& model, const std::vector<RankPlacement>& placements, std::uint32_t spread = 1) {
  const ExpertTable table = expert_table(placements, model.experts);
  std::uint32_t fewest = model.experts, most = 0;
  for (const RankPlacement& p : placements) {
    fewest = std::min<std::uint32_t>(fewest, static_cast<std::uint32_t>(p.experts.size()));
    most = std::max<std::uint32_t>(most, static_cast<std::uint32_t>(p.experts.size()));
    ASSERT_TRUE(std::is_sorted(p.experts.begin(), p.experts.end(), [](const auto& a, const auto& b) { return a.expert < b.expert; }));
  }
  ASSERT_LE(most - fewest, spread);
  for (std::uint32_t e = 0; e < model.experts; ++e) {
    const auto extra = static_cast<std::size_t>(std::count(grid.replicas.begin(), grid.replicas.end(), ExpertId{e}));
    ASSERT_EQ(table[e].size(), grid.world / grid.ep + extra);
    for (std::size_t copy = 0; copy < table[e].size(); ++copy) {
      const auto [rank, slot] = table[e][copy];
      ASSERT_TRUE(copy == 0 || table[e][copy - 1].rank < rank);
      ASSERT_EQ(placements[rank.value].experts[slot.value],
                (HeldExpert{ExpertId{e}, static_cast<std::uint32_t>(copy), static_cast<std::uint32_t>(table[e].size())}));
    }
  }
}

// Every (token, expert) is computed by exactly one rank, the one that the table names, and copies take turns.
void expect_work_shared(const ModelShape& model, const std::vector<RankPlacement>& placements) {
  const ExpertTable table = expert_table(placements, model.experts);
  constexpr std::uint32_t tokens = 60;
  for (std::uint32_t e = 0; e < model.experts; ++e) {
    std::vector<std::uint32_t> work(placements.size(), 0);
    for (std::uint32_t token = 0; token < tokens; ++token) {
      std::vector<RankId> who;
      for (const RankPlacement& p : placements)
        for (const HeldExpert& held : p.experts)
          if (held.expert.value == e && computes(held, token)) who.push_back(p.rank);
      ASSERT_EQ(who, std::vector<RankId>{place_for(table, ExpertId{e}, token).rank});
      ++work[who[0].value];
    }
    const auto copies = static_cast<std::uint32_t>(table[e].size());
    for (const ExpertPlace& place : table[e]) {
      ASSERT_GE(work[place.rank.value], tokens / copies);
      ASSERT_LE(work[place.rank.value], (tokens + copies - 1) / copies);
    }
  }
}

TEST(Placement, every_legal_grid_of_1_to_8_ranks_loads_and_every_other_is_refused) {
  std::uint32_t legal = 0, refused = 0;
  for (const ModelShape& model : {shape_20b, shape_120b})
    for (std::uint32_t world = 1; world <= 8; ++world)
      for (std::uint32_t dp = 0; dp <= world + 1; ++dp)
        for (std::uint32_t tp = 0; tp <= world + 1; ++tp)
          for (std::uint32_t ep = 0; ep <= world + 1; ++ep) {
            const Grid grid{world, dp, tp, ep, {}};
            // With 64 query heads and 8 KV heads only powers of two can split them.
            const bool fits = dp * tp == world && (tp == 1 || tp == 2 || tp == 4 || tp == 8) && ep > 0 && world % ep == 0;
            const auto placements = place(grid, model);
            SCOPED_TRACE(std::to_string(world) + ": " + std::to_string(dp) + " " + std::to_string(tp) + " " + std::to_string(ep));
            ASSERT_EQ(placements.ok(), fits);
            ++(fits ? legal : refused);
            if (!fits) {
              ASSERT_FALSE(placements.error().message.empty());
              continue;
            }
            ASSERT_EQ(placements->size(), world);
            expect_heads_whole(grid, model, *placements);
            expect_experts_placed(grid, model, *placements);
            expect_work_shared(model, *placements);
          }
  EXPECT_EQ(legal, 2u * (1 + 4 + 2 + 9 + 2 + 8 + 2 + 16));
  EXPECT_GT(refused, 1000u);
}

TEST(Placement, the_default_is_one_group_with_everything_split) {
  const auto placements = place(2, shape_tiny).value();
  EXPECT_EQ(placements, place(Grid{2, 1, 2, 2, {}}, shape_tiny).value());
  EXPECT_EQ(placements[1].query_heads, (Range{2, 4}));
  EXPECT_EQ(placements[1].experts.front(), (HeldExpert{ExpertId{4}, 0, 1}));
  EXPECT_EQ(placements[1].vocabulary, (Range{1152, 2304}));
}

TEST(Placement, dp_and_tp_and_ep_are_freely_combined) {
  const auto p = place(Grid{4, 2, 2, 2, {}}, shape_tiny).value();
  EXPECT_EQ(p[2].dp_group, DpGroup{1});
  EXPECT_EQ(p[2].query_heads, p[0].query_heads);
  // Parts of the experts go round the ranks, so that each group holds all of them.
  EXPECT_EQ(p[2].experts.front(), (HeldExpert{ExpertId{0}, 1, 2}));
  EXPECT_EQ(p[3].experts.front(), (HeldExpert{ExpertId{4}, 1, 2}));
  EXPECT_EQ(p[3].vocabulary, (Range{1728, 2304}));
}

TEST(Placement, more_ranks_than_kv_heads_read_the_same_one) {
  const auto p = place(Grid{4, 1, 4, 4, {}}, shape_tiny).value();
  EXPECT_EQ(p[0].kv_heads, (Range{0, 1}));
  EXPECT_EQ(p[1].kv_heads, (Range{0, 1}));
  EXPECT_EQ(p[2].kv_heads, (Range{1, 2}));
}

TEST(Placement, replicas_go_to_the_emptiest_rank_that_does_not_hold_the_expert) {
  const Grid grid{4, 1, 4, 4, ids({0, 0, 7, 3})};
  const auto p = place(grid, shape_tiny).value();
  const ExpertTable table = expert_table(p, 8);
  const auto ranks = [&](std::uint32_t e) {
    std::vector<std::uint32_t> list;
    for (const ExpertPlace& place : table[e]) list.push_back(place.rank.value);
    return list;
  };
  EXPECT_EQ(ranks(0), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(ranks(7), (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(ranks(3), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(ranks(4), (std::vector<std::uint32_t>{2}));
  // Slots are not ids: rank 1 holds experts 0, 2, 3 in slots 0, 1, 2.
  EXPECT_EQ(table[2][0], (ExpertPlace{RankId{1}, ExpertSlot{1}}));
  expect_experts_placed(grid, shape_tiny, p);
  expect_work_shared(shape_tiny, p);
}

TEST(Placement, replicas_of_every_published_shape_share_the_work) {
  for (const ModelShape& model : {shape_20b, shape_120b})
    for (const std::uint32_t count : {1u, 5u, 32u}) {
      Grid grid{8, 2, 4, 4, {}};
      for (std::uint32_t e = 0; e < count; ++e) grid.replicas.push_back(ExpertId{e});
      const auto p = place(grid, model);
      ASSERT_TRUE(p.ok()) << p.error().message;
      // At worst all of them are experts of two ranks, and the other six take turns.
      expect_experts_placed(grid, model, *p, (count + 5) / 6);
      expect_work_shared(model, *p);
    }
}

TEST(Placement, refusals_say_what_to_change) {
  expect_refused({0, 1, 1, 1, {}}, shape_tiny, "ranks", "use 1 to 64 ranks");
  expect_refused({65, 65, 1, 1, {}}, shape_tiny, "ranks", "use 1 to 64 ranks");
  expect_refused({1, 1, 1, 1, {}}, {4, 2, 0, 9}, "model", "no heads, experts or vocabulary");
  expect_refused({1, 1, 1, 1, {}}, {5, 2, 8, 9}, "model", "5 query heads do not divide over its 2 KV heads");
  expect_refused({2, 0, 2, 2, {}}, shape_tiny, "dp", "dp is 0; use 1 or more");
  expect_refused({2, 2, 0, 2, {}}, shape_tiny, "tp", "tp is 0; use 1 or more");
  expect_refused({2, 1, 2, 0, {}}, shape_tiny, "ep", "ep is 0; use 1 or more");
  expect_refused({4, 1, 2, 1, {}}, shape_tiny, "dp", "dp x tp is 2 and must be the number of ranks; change one of the three, as to dp 2");
  expect_refused({4, 2, 3, 1, {}}, shape_tiny, "dp", "dp x tp is 6 and must be the number of ranks; change one of the three");
  expect_refused({2, 65'536, 65'536, 1, {}}, shape_tiny, "dp", "dp x tp is 4294967296");
  expect_refused({3, 1, 3, 3, {}}, shape_tiny, "tp", "tp must divide the query heads; use a tp of 1, 2, 4, and dp for more ranks");
  expect_refused({4, 1, 4, 4, {}}, {12, 6, 8, 99}, "tp", "tp must divide the KV heads or be a multiple of their number; use a tp of 1, 2, 3, 6, 12");
  expect_refused({4, 2, 2, 3, {}}, shape_tiny, "ep", "ep must divide the number of ranks; use an ep of 1, 2, 4");
  expect_refused({16, 16, 1, 16, {}}, shape_tiny, "ep", "it has only 8 experts; use an ep of 1, 2, 4, 8");
  expect_refused({4, 2, 2, 2, {}}, {4, 2, 8, 3}, "ranks", "its vocabulary has only 3 tokens");
  expect_refused({2, 1, 2, 2, ids({8})}, shape_tiny, "replicas", "a replica of expert 8 is asked for; its experts are 0 to 7");
  expect_refused({2, 1, 2, 2, ids({1, 1})}, shape_tiny, "replicas",
                 "expert 1 is asked for, which every rank holds already; ask for fewer replicas of it");
  expect_refused({2, 1, 2, 1, ids({1})}, shape_tiny, "replicas", "or raise ep");
}

}  // namespace
}  // namespace althing::scheduler
