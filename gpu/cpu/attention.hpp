// Attention over paged keys and values in canonical segments: positions are cut at multiples of 64; each segment, clipped to what the query sees,
// gives an independent (m, d, o) = (maximum score, sum of exp(score - m), sum of exp(score - m) * value); segments are merged in order and the sink
// enters once at the end. A query's result depends on its position and the cached values only: not on chunking, page numbers or neighbours.
// Orders inside a segment: a score is one chain over head_dim; d runs in 8 lanes (position mod 8); o is one chain over positions.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/cpu/kv_cache.hpp"

namespace althing::gpu::cpu {

inline constexpr std::uint32_t kv_segment = 64;

// One query token of one KV head: `heads` query heads that share it.
struct AttentionArgs {
  const KvCache& cache;
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;
  std::span<const PageId> pages;  // the row's table for the layer's group
  std::uint32_t position = 0;     // of the query; its own key is already in the cache
  std::uint32_t window = 0;       // 0: all positions up to its own
  std::uint32_t head_dim = 0;     // a multiple of 8
  std::uint32_t heads = 0;
  const float* queries = nullptr;  // (heads, head_dim), rotated, not scaled
  const float* sinks = nullptr;    // (heads) or nullptr
  float* attended = nullptr;       // (heads, head_dim)
};

void attend(const AttentionArgs& args);

// Writes one token's key and value of one KV head at `position`.
struct AppendArgs {
  const KvCache& cache;
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;
  std::span<const PageId> pages;
  std::uint32_t position = 0;
  std::uint32_t head_dim = 0;
  const float* key = nullptr;
  const float* value = nullptr;
};

void append(const AppendArgs& args);

}  // namespace althing::gpu::cpu
