// Placement is a pure function of the world size and the model: attention heads and the output head are split evenly over all ranks (TP),
// experts likewise (EP). Every rank sees every token; sums over ranks are taken in rank order or as exact integers.
#pragma once

#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::scheduler {

// One entry a rank, ascending. Refused with the reason: a world of 0 or more than 64 ranks, more ranks than query heads or experts,
// query heads that do not divide evenly over the ranks or over the KV heads, KV heads and ranks neither of which divides the other.
Result<std::vector<RankPlacement>> place(std::uint32_t world, const ModelShape& model);

}  // namespace althing::scheduler
