// Ids are types, not integers: a row cannot be passed where a request is meant. Each wraps one number, `value`.
// Token ids are the exception: they come in long arrays from tokenizers and to kernels, so they stay plain integers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace althing {

template <class Tag, class Representation>
struct Id {
  using representation = Representation;
  Representation value{};

  constexpr Id() = default;
  constexpr explicit Id(Representation number) : value(number) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using TokenId = std::uint32_t;

// A request inside one serving process; the frontend makes them and never uses one twice.
using RequestId = Id<struct RequestTag, std::uint64_t>;
// Whose request it is, for a fair share of the server; the serving process makes one a name. 0: nobody said.
using TenantId = Id<struct TenantTag, std::uint64_t>;
// One member of the grid, 0 … world-1.
using RankId = Id<struct RankTag, std::uint32_t>;
// One of the grid's DP groups, 0 … dp-1: ranks that share the attention and the KV of the same sequences.
using DpGroup = Id<struct DpGroupTag, std::uint32_t>;
// A membership of ranks, 1 or more; every change of membership has a larger one. Results of an older epoch are void.
using EpochId = Id<struct EpochTag, std::uint64_t>;
// A step of the engine, 1, 2, 3 … without gaps within an epoch and never reused.
using StepId = Id<struct StepTag, std::uint64_t>;
// A place in the running batch, 0 … rows_max-1. A request keeps its row from admission to its end or preemption.
using RowIndex = Id<struct RowTag, std::uint32_t>;
// A page of a DP group's KV pool, the same number on every rank of the group (each holds its own shard of the page).
using PageId = Id<struct PageTag, std::uint32_t>;
// A place for one page in the mirror of a DP group, the same number on every rank of the group (each keeps its own shard of the page there).
using MirrorSlot = Id<struct MirrorSlotTag, std::uint32_t>;
// An expert of the model, and the place where a rank holds it. They differ wherever a rank does not hold all experts.
using ExpertId = Id<struct ExpertTag, std::uint32_t>;
using ExpertSlot = Id<struct ExpertSlotTag, std::uint32_t>;

}  // namespace althing

template <class Tag, class Representation>
struct std::hash<althing::Id<Tag, Representation>> {
  std::size_t operator()(althing::Id<Tag, Representation> id) const noexcept { return std::hash<Representation>{}(id.value); }
};
