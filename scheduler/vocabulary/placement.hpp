// Which part of the model a rank owns. Computed once by scheduler/placement.hpp, used by every backend.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing {

// Half-open range.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  constexpr std::uint32_t size() const { return end - begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

// The sizes of a model that placement needs.
struct ModelShape {
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t experts = 0;
  std::uint32_t vocabulary = 0;
};

struct RankPlacement {
  RankId rank;
  std::uint32_t world = 1;
  Range query_heads;              // contiguous; in units of heads
  Range kv_heads;                 // the KV heads those query heads read; replicated when ranks outnumber KV heads
  std::vector<ExpertId> experts;  // by slot: experts[slot] is the expert held there, ascending
  Range vocabulary;               // rows of the output head

  friend bool operator==(const RankPlacement&, const RankPlacement&) = default;
};

}  // namespace althing
