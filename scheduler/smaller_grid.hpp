// What a world becomes when ranks are missing, as pure functions beside place(): whether those that are left still hold the whole model, and which
// smaller grids there are, best first. Whoever decides about membership walks the list and takes the first grid that the ranks at hand suffice for.
#pragma once

#include <span>
#include <vector>

#include "scheduler/vocabulary/placement.hpp"

namespace althing::scheduler {

// Whether the ranks that are `alive` hold every expert, and all attention heads in at least one whole DP group. Then they can go on at once in a
// smaller grid of the same TP, without anything being loaded that none of them has.
// REQUIRES: placements are of one world, as place() returns them, and alive.size() is its size.
bool hold_whole_model(std::span<const RankPlacement> placements, const std::vector<bool>& alive);

// Every grid of at most full.world ranks that place() accepts for this model and that differs in what matters: `full` itself first; then those of the
// same TP, whose bits are equal, with most ranks first; then other TPs, again most ranks first, and among equals the larger TP. For each world and TP
// there is one: experts are cut into as many parts as in `full`, or the next larger number that divides the world, so that no rank holds more than
// before (with fewer ranks than parts: a part a rank). Replicas stay, in order, unless the smaller world has a copy on every rank already.
// REQUIRES: place() accepts `full` for this model.
std::vector<Grid> grids_by_preference(const Grid& full, const ModelShape& model);

}  // namespace althing::scheduler
