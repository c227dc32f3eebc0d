// See the header. Legality is place()'s to say; this file only proposes.
#include "scheduler/smaller_grid.hpp"

#include <algorithm>
#include <optional>

#include "scheduler/placement.hpp"

namespace althing::scheduler {
namespace {

// The smallest number of parts that divides the world and is no smaller than before; all ranks where there are fewer.
std::uint32_t expert_parts(const Grid& full, std::uint32_t world, const ModelShape& model) {
  std::uint32_t most = 1;
  for (std::uint32_t ep = 1; ep <= world && ep <= model.experts; ++ep) {
    if (world % ep != 0) continue;
    most = ep;
    if (ep >= full.ep) return ep;
  }
  return most;
}

// Those of full.replicas that find a rank without the expert.
std::vector<ExpertId> replicas_fitting(const Grid& full, const Grid& grid, const ModelShape& model) {
  std::vector<std::uint32_t> copies(model.experts, grid.world / grid.ep);
  std::vector<ExpertId> kept;
  for (const ExpertId expert : full.replicas) {
    if (copies[expert.value] == grid.world) continue;
    ++copies[expert.value];
    kept.push_back(expert);
  }
  return kept;
}

std::optional<Grid> smaller(const Grid& full, std::uint32_t world, std::uint32_t tp, const ModelShape& model) {
  if (world % tp != 0) return std::nullopt;
  Grid grid{world, world / tp, tp, expert_parts(full, world, model), {}};
  grid.replicas = replicas_fitting(full, grid, model);
  if (!place(grid, model)) return std::nullopt;
  return grid;
}

}  // namespace

bool hold_whole_model(std::span<const RankPlacement> placements, const std::vector<bool>& alive) {
  std::vector<bool> held;
  std::vector<std::uint32_t> alive_of(placements.front().dp, 0);
  for (const RankPlacement& p : placements) {
    for (const HeldExpert& expert : p.experts) {
      if (held.size() <= expert.expert.value) held.resize(expert.expert.value + 1, false);
      if (alive[p.rank.value]) held[expert.expert.value] = true;
    }
    if (alive[p.rank.value]) ++alive_of[p.dp_group.value];
  }
  const bool whole_group = std::any_of(alive_of.begin(), alive_of.end(), [&](std::uint32_t n) { return n == placements.front().tp(); });
  return whole_group && std::all_of(held.begin(), held.end(), [](bool one) { return one; });
}

std::vector<Grid> grids_by_preference(const Grid& full, const ModelShape& model) {
  std::vector<Grid> grids{full};
  for (std::uint32_t world = full.world - 1; world > 0; --world)
    if (auto grid = smaller(full, world, full.tp, model)) grids.push_back(std::move(*grid));
  for (std::uint32_t world = full.world; world-- > 1;)
    for (std::uint32_t tp = world; tp > 0; --tp) {
      if (tp == full.tp) continue;
      if (auto grid = smaller(full, world, tp, model)) grids.push_back(std::move(*grid));
    }
  return grids;
}

}  // namespace althing::scheduler
