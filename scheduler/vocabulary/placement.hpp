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

// How ranks share a model: world = dp x tp ranks. Ranks group * tp … group * tp + tp-1 are one DP group.
struct Grid {
  std::uint32_t world = 1;
  std::uint32_t dp = 1;            // groups; a sequence belongs to one, which alone holds its KV and computes its attention
  std::uint32_t tp = 1;            // parts that attention heads are split into, inside a group
  std::uint32_t ep = 1;            // parts that experts are split into; world / ep ranks hold the same part
  std::vector<ExpertId> replicas;  // each gets a slot on one more rank; an expert named twice gets two

  friend bool operator==(const Grid&, const Grid&) = default;
};

// One of `copies` equal copies of an expert.
struct HeldExpert {
  ExpertId expert;
  std::uint32_t copy = 0;  // counted over the ranks that hold it, ascending
  std::uint32_t copies = 1;

  friend constexpr bool operator==(const HeldExpert&, const HeldExpert&) = default;
};

// Which copy computes an expert for the step's `token`: they take turns. Neighbouring experts begin with different copies, so that a step of few
// tokens is spread too. An expert's output is the same bits on every copy, so this is about balance only.
constexpr std::uint32_t copy_for(ExpertId expert, std::uint32_t token, std::uint32_t copies) { return (token + expert.value) % copies; }
constexpr bool computes(const HeldExpert& held, std::uint32_t token) { return copy_for(held.expert, token, held.copies) == held.copy; }

struct RankPlacement {
  RankId rank;
  std::uint32_t world = 1;
  std::uint32_t dp = 1;  // groups in the world
  DpGroup dp_group{};
  Range query_heads;                // contiguous; in units of heads
  Range kv_heads;                   // the KV heads those query heads read; replicated when a group has more ranks than the model KV heads
  std::vector<HeldExpert> experts;  // by slot: experts[slot] is the expert held there, ascending
  Range vocabulary;                 // rows of the output head

  // Ranks of its DP group.
  constexpr std::uint32_t tp() const { return world / dp; }
  friend bool operator==(const RankPlacement&, const RankPlacement&) = default;
};

}  // namespace althing
