// Smaller grids, for every legal grid of up to 8 ranks: each proposal is one that place() accepts, in the stated order, and holds no more of the
// model a rank than it must; and the predicate for going on without loading, against a count by hand for every set of survivors.
#include "scheduler/smaller_grid.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "scheduler/placement.hpp"

namespace althing::scheduler {
namespace {

constexpr ModelShape shape_20b{64, 8, 32, 201'088};
constexpr ModelShape shape_tiny{8, 2, 16, 2304};

std::string text(const Grid& g) {
  return std::to_string(g.world) + "=" + std::to_string(g.dp) + "x" + std::to_string(g.tp) + "/" + std::to_string(g.ep) + "+" +
         std::to_string(g.replicas.size());
}

std::vector<std::string> texts(const std::vector<Grid>& grids) {
  std::vector<std::string> all;
  for (const Grid& grid : grids) all.push_back(text(grid));
  return all;
}

std::vector<RankPlacement> placed(const Grid& grid, const ModelShape& model) {
  auto placements = place(grid, model);
  if (placements.ok()) return std::move(*placements);
  ADD_FAILURE() << placements.error().message;
  return {};
}

// Every grid of up to 8 ranks that the model can be placed in, without and with replicas.
template <class Each>
void for_each_grid(const ModelShape& model, Each each) {
  for (std::uint32_t world = 1; world <= 8; ++world)
    for (std::uint32_t tp = 1; tp <= world; ++tp)
      for (std::uint32_t ep = 1; ep <= world; ++ep)
        for (const bool replicated : {false, true}) {
          Grid grid{world, world / tp, tp, ep, {}};
          if (replicated) grid.replicas = {ExpertId{0}, ExpertId{3}, ExpertId{0}};
          if (world % tp == 0 && place(grid, model)) each(grid);
        }
}

std::size_t slots_max(const Grid& grid, const ModelShape& model) {
  std::size_t most = 0;
  for (const RankPlacement& p : placed(grid, model)) most = std::max(most, p.experts.size());
  return most;
}

TEST(SmallerGrid, all_proposals_are_legal_distinct_and_in_the_stated_order) {
  std::size_t seen = 0;
  for (const ModelShape& model : {shape_tiny, shape_20b})
    for_each_grid(model, [&](const Grid& full) {
      const auto grids = grids_by_preference(full, model);
      ASSERT_EQ(grids.front(), full);
      std::set<std::pair<std::uint32_t, std::uint32_t>> kinds;
      for (std::size_t i = 0; i < grids.size(); ++i) {
        const Grid& grid = grids[i];
        ASSERT_TRUE(place(grid, model).ok()) << text(full) << " to " << text(grid);
        ASSERT_TRUE(kinds.insert({grid.world, grid.tp}).second) << text(full) << " to " << text(grid) << " twice";
        if (i == 0) continue;
        ASSERT_LT(grid.world, full.world);
        const Grid& better = grids[i - 1];
        const auto rank_of = [&](const Grid& g) { return std::tuple(g.tp != full.tp, 8 - g.world, 64 - g.tp); };
        ASSERT_LT(rank_of(better), rank_of(grid)) << text(full) << ": " << text(better) << " before " << text(grid);
        ++seen;
      }
      // No grid is left out: whatever some ep makes legal is there with one.
      for (std::uint32_t world = 1; world < full.world; ++world)
        for (std::uint32_t tp = 1; tp <= world; ++tp)
          if (world % tp == 0 && place(Grid{world, world / tp, tp, 1, {}}, model).ok()) {
            ASSERT_TRUE(kinds.contains({world, tp})) << text(full) << " misses " << world << "/" << tp;
          }
    });
  EXPECT_GT(seen, 200u);
}

TEST(SmallerGrid, a_rank_holds_no_more_experts_than_before_where_the_ranks_suffice) {
  for_each_grid(shape_20b, [](const Grid& full) {
    for (const Grid& grid : grids_by_preference(full, shape_20b)) {
      if (grid.world < full.ep) {
        ASSERT_EQ(grid.ep, grid.world) << text(full) << " to " << text(grid);
      } else if (full.replicas.empty()) {
        ASSERT_LE(slots_max(grid, shape_20b), slots_max(full, shape_20b)) << text(full) << " to " << text(grid);
      }
    }
  });
}

TEST(SmallerGrid, examples) {
  EXPECT_EQ(texts(grids_by_preference({2, 1, 2, 2, {}}, shape_tiny)), (std::vector<std::string>{"2=1x2/2+0", "1=1x1/1+0"}));
  EXPECT_EQ(texts(grids_by_preference({4, 2, 2, 2, {ExpertId{0}, ExpertId{5}}}, shape_tiny)),
            (std::vector<std::string>{"4=2x2/2+2", "2=1x2/2+2", "3=3x1/3+2", "2=2x1/2+2", "1=1x1/1+0"}));
  EXPECT_EQ(texts(grids_by_preference({3, 3, 1, 1, {}}, shape_tiny)), (std::vector<std::string>{"3=3x1/1+0", "2=2x1/1+0", "1=1x1/1+0", "2=1x2/1+0"}));
  EXPECT_EQ(texts(grids_by_preference({1, 1, 1, 1, {}}, shape_tiny)), (std::vector<std::string>{"1=1x1/1+0"}));
}

// Counted by hand: rank r holds part r mod ep of the experts; replicas as the table says.
TEST(SmallerGrid, survivors_hold_the_whole_model_iff_every_expert_and_one_group_are_there) {
  std::size_t yes = 0, no = 0;
  for_each_grid(shape_tiny, [&](const Grid& grid) {
    const auto placements = placed(grid, shape_tiny);
    const ExpertTable table = expert_table(placements, shape_tiny.experts);
    for (std::uint32_t mask = 0; mask < (1u << grid.world); ++mask) {
      std::vector<bool> alive;
      for (std::uint32_t r = 0; r < grid.world; ++r) alive.push_back((mask >> r & 1u) != 0);
      bool experts = true, group = false;
      for (const auto& places : table) {
        bool here = false;
        for (const ExpertPlace& place : places) here = here || alive[place.rank.value];
        experts = experts && here;
      }
      for (std::uint32_t g = 0; g < grid.dp; ++g) {
        bool all = true;
        for (std::uint32_t r = g * grid.tp; r < (g + 1) * grid.tp; ++r) all = all && alive[r];
        group = group || all;
      }
      ASSERT_EQ(hold_whole_model(placements, alive), experts && group) << text(grid) << " mask " << mask;
      ++(experts && group ? yes : no);
      // Whoever holds the whole model has a grid of the same TP to go on in.
      if (!(experts && group)) continue;
      std::uint32_t left = 0;
      for (const bool one : alive) left += one ? 1 : 0;
      bool fits = false;
      for (const Grid& smaller : grids_by_preference(grid, shape_tiny)) fits = fits || (smaller.tp == grid.tp && smaller.world <= left);
      ASSERT_TRUE(fits) << text(grid) << " mask " << mask;
    }
  });
  EXPECT_GT(yes, 500u);
  EXPECT_GT(no, 1000u);
}

TEST(SmallerGrid, a_whole_group_without_one_expert_is_not_enough) {
  const auto placements = placed(Grid{4, 2, 2, 4, {}}, shape_tiny);
  EXPECT_FALSE(hold_whole_model(placements, {true, true, false, false}));
  EXPECT_TRUE(hold_whole_model(placed(Grid{4, 2, 2, 2, {}}, shape_tiny), {true, true, false, false}));
  EXPECT_FALSE(hold_whole_model(placed(Grid{4, 2, 2, 2, {}}, shape_tiny), {true, false, false, true})) << "every expert, and no whole group";
}

}  // namespace
}  // namespace althing::scheduler
