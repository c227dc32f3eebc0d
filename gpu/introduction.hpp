// What the ranks of an epoch tell each other before their first step: one vector of integers a rank, whose sum over ranks says whether together they
// are one grid that holds the whole model. Ranks that disagree would compute something else than the model, in silence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::gpu {

std::vector<std::int64_t> introduce(const RankPlacement& placement, const ModelShape& model);

// From the sum of what all ranks of `placement`'s world told: rows of the output head by rank. invalid_argument when vocabulary or heads of a group
// do not join, when ranks disagree about groups or copies, or when an expert's copies are not there exactly once each. Every rank gets the same
// answer.
Result<std::vector<std::uint32_t>> vocabulary_parts(std::span<const std::int64_t> sum, const RankPlacement& placement, const ModelShape& model);

// By expert, from the same sum: how many ranks hold it. REQUIRES: vocabulary_parts has accepted the sum.
std::vector<std::uint32_t> expert_copies(std::span<const std::int64_t> sum, const RankPlacement& placement, const ModelShape& model);

// Where each copy of each expert is, by expert and copy, from the same sum. REQUIRES: as above.
struct ExpertHome {
  std::uint16_t rank = 0;
  std::uint16_t slot = 0;

  friend bool operator==(const ExpertHome&, const ExpertHome&) = default;
};
std::vector<std::vector<ExpertHome>> expert_homes(std::span<const std::int64_t> sum, const RankPlacement& placement, const ModelShape& model);

}  // namespace althing::gpu
