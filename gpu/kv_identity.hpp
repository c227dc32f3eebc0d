// What the bits of KV pages depend on besides tokens, as one number: pages that were written under another are not these pages.
#pragma once

#include <cstdint>

#include "gpu/executor.hpp"

namespace althing::gpu {

// Of every rank alike: build, backend, model (its sizes and the weights of its norms), page layout, and the TP degree, which sets the order of sums.
std::uint64_t kv_identity(const DecoderSpec& spec, const KvLayout& layout, Device device, const RankPlacement& placement);
// With the rank's own part of the heads.
std::uint64_t kv_shard_identity(std::uint64_t identity, const RankPlacement& placement);

}  // namespace althing::gpu
