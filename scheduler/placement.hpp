// Placement is a pure function of the grid and the model: sequences belong to DP groups, attention heads are split TP ways inside a group, experts EP
// ways over all ranks, the output head over all ranks. Every rank sees every token's hidden state, computes its experts for the tokens that are its
// turn, and adds what the others computed. Sums over a group's ranks are taken in rank order, sums of experts as exact integers, so bits depend on
// TP alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::scheduler {

// What a world is unless told otherwise: one DP group, heads and experts split over all ranks.
Grid default_grid(std::uint32_t world);

// One entry a rank, ascending. invalid_argument, with what to change, and as `field` the grid's member (world is "ranks"), for: a world of 0 or more
// than 64 ranks; dp x tp that is not the world; a tp that does not divide the query heads, or does not divide the KV heads and is no multiple of
// them either; an ep that does not divide the world or is more than the experts; more ranks than the vocabulary has tokens; a replica of an expert
// that does not exist or is on every rank already; a model without heads, experts or vocabulary or whose heads do not fit together ("model").
Result<std::vector<RankPlacement>> place(const Grid& grid, const ModelShape& model);
Result<std::vector<RankPlacement>> place(std::uint32_t world, const ModelShape& model);

// Where a copy of an expert is. The expert's id is known by who asks; the slot is where the rank holds it.
struct ExpertPlace {
  RankId rank;
  ExpertSlot slot;

  friend bool operator==(const ExpertPlace&, const ExpertPlace&) = default;
};

// By expert: its places, ascending by rank, so that copy c is places[c]. REQUIRES: placements of one world, as place() returns them.
using ExpertTable = std::vector<std::vector<ExpertPlace>>;
ExpertTable expert_table(std::span<const RankPlacement> placements, std::uint32_t experts);

// Where the step's `token` gets `expert` computed.
ExpertPlace place_for(const ExpertTable& table, ExpertId expert, std::uint32_t token);

}  // namespace althing::scheduler
