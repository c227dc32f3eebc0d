// The KV mirror between processes: the supervisor makes one memory a place in the grid, whichever process takes the place adopts it, and the core
// hears what every rank of a DP group has. Invariant: a page is reported to the core only when each rank of its group has its shard of it, in one
// slot and under one key.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/engine_setup.hpp"
#include "gpu/mirror_memory.hpp"
#include "scheduler/vocabulary/events.hpp"

namespace althing::actors {

// One memory a place, all with one secret; none where the setup has no mirror. Errors: those of MirrorMemory::create.
Result<std::vector<gpu::MirrorMemory>> make_mirrors(const EngineSetup& setup);

// The memory of a rank's place, which another process may have left pages in, or be using still: it is the caller's only when an epoch gives it the
// place (MirrorMemory::take). Takes ownership of the descriptor. Null where the setup has no mirror.
// Errors: those of MirrorMemory::adopt.
Result<std::shared_ptr<gpu::MirrorMemory>> adopt_mirror(int descriptor, const EngineSetup& setup, std::uint32_t rank);

// What one rank reported when it joined: pages ascending by slot.
struct MirrorReport {
  PageKey seed;
  std::vector<MirroredPage> pages;
};
// What all ranks of each group have, ascending by group and slot. Reports stand by rank; ranks group * tp … are one group. A rank with another seed
// than the first rank's has nothing.
std::vector<MirroredPage> agree(const std::vector<MirrorReport>& reports, std::uint32_t tp);

}  // namespace althing::actors
