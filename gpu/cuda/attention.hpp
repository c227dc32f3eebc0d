// Attention over the paged cache: each query token against the keys and values of its row, up to its own position or through a window. Two kernels
// make the same bits (attention_segment.cuh): decode takes tokens one by one and may split one over several blocks; prefill takes tiles of
// consecutive tokens of one row. How a step is divided into tiles, lists and splits therefore changes no result. Shapes and sizes come from here,
// without a device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/numerics.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t attention_head_dim = 64;
inline constexpr std::uint32_t attention_tile_rows = 192;     // (token, head) pairs of one prefill tile and KV head
inline constexpr std::uint32_t attention_tickets_max = 1024;  // pairs (list entry, KV head) of a launch with splits
inline constexpr std::uint32_t attention_page_tokens_min = 16;

struct AttentionShape {
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
};

constexpr bool supports_attention(const AttentionShape& s) {
  if (s.head_dim != attention_head_dim || s.kv_heads == 0 || s.query_heads % s.kv_heads != 0) return false;
  const std::uint32_t group = s.query_heads / s.kv_heads;
  return group == 1 || group == 2 || group == 4 || group == 8;
}

// Tokens of one prefill tile. REQUIRES: supports_attention.
constexpr std::uint32_t prefill_tile_tokens(const AttentionShape& s) { return attention_tile_rows / (s.query_heads / s.kv_heads); }

// The most segments that any token can see when rows have at most `positions` positions.
constexpr std::uint32_t attention_segments_max(std::uint32_t positions, std::uint32_t window) {
  const std::uint32_t all = ceil_div(positions, kv_segment);
  return window == 0 ? all : std::min(all, ceil_div(window - 1, kv_segment) + 1);
}

struct DecodeWork {
  std::uint32_t count = 0;  // list entries
  std::uint32_t kv_heads = 0;
  std::uint32_t segments_max = 0;  // of attention_segments_max
};

// Into how many blocks a token is split. Two blocks fit a processor; a merge is not worth its time for two segments.
constexpr std::uint32_t attention_splits(const DecodeWork& w, std::uint32_t processors) {
  const std::uint32_t units = w.count * w.kv_heads;
  if (w.segments_max <= 2 || units == 0 || units > attention_tickets_max) return 1;
  return std::clamp(2 * processors / units, 1u, w.segments_max);
}

// Scratch of a decode launch: tickets, then for each segment and head o and (m, d). One buffer serves all launches of a stream, whatever their work.
constexpr std::size_t attention_scratch_bytes(const DecodeWork& w, std::uint32_t query_heads, std::uint32_t splits) {
  if (splits <= 1) return 0;
  return attention_tickets_max * sizeof(std::uint32_t) +
         std::size_t{w.count} * query_heads * w.segments_max * (attention_head_dim + 2) * sizeof(float);
}

// What both kernels read and write.
struct AttentionArgs {
  StepTokens tokens;
  const __nv_bfloat16* queries = nullptr;  // (tokens, query_heads, head_dim), rotated, not scaled
  LayerKv kv;                              // the token's own key and value are in it already
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t window = 0;           // positions that a token sees, its own included; 0: all
  const float* sinks = nullptr;       // (query_heads) or nullptr
  __nv_bfloat16* attended = nullptr;  // (tokens, attended_stride): head h of a token at h * head_dim; the rest of a row is not written
  std::uint32_t attended_stride = 0;  // elements, even
};

struct AttentionDecodeArgs {
  AttentionArgs attention;
  const std::int32_t* list = nullptr;  // (count) token indexes; -1: nothing to do
  std::uint32_t count = 0;
  std::uint32_t splits = 1;
  std::uint32_t segments_max = 0;  // for which `scratch` has room; a token that sees more is not split
  void* scratch = nullptr;         // attention_scratch_bytes, all zero before the first launch that gets it; not read when splits is 1
};

// Consecutive tokens [first, first + count) of the step: one row, consecutive positions, at most prefill_tile_tokens. count 0: nothing to do.
struct PrefillTile {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

struct AttentionPrefillArgs {
  AttentionArgs attention;
  const PrefillTile* tiles = nullptr;  // (count) on the device
  std::uint32_t count = 0;
};

// Tokens with row -1 get zeros. Both return cudaErrorInvalidValue, launching nothing, for shapes that supports_attention refuses, pages that are not
// a power of two of at least attention_page_tokens_min positions or 4 GiB or larger, and more split pairs than attention_tickets_max. A count of 0 is
// a success without a launch.
cudaError_t attention_decode(const AttentionDecodeArgs& args, cudaStream_t stream);
cudaError_t attention_prefill(const AttentionPrefillArgs& args, cudaStream_t stream);

}  // namespace althing::gpu::cuda
