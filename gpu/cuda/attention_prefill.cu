// Attention of tiles of consecutive tokens. Contract: attention.hpp; the math: attention_segment.cuh.
//
// A block has one (tile, KV head): attention_tile_rows rows, row r being head r % G of token r / G, 16 rows a warp. The block walks over all segments
// that its tile sees, in order, two on their way while one is worked on; a warp leaves out segments that its own tokens do not see.
#include "gpu/cuda/attention.hpp"

#include <cuda_runtime.h>

#include "gpu/cuda/attention_segment.cuh"
#include "gpu/cuda/attention_wgmma.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t prefill_threads = attention_tile_rows * 2;
constexpr std::uint32_t prefill_stages = 3;
constexpr std::uint32_t query_bytes = attention_tile_rows * kv_row_bytes;
constexpr std::uint32_t prefill_shared_bytes = query_bytes + prefill_stages * staged_bytes;

// The block's part of the step. Rows beyond the tile's tokens repeat the last token: they compute and are not written.
struct PrefillWork {
  std::uint32_t first;  // token
  std::uint32_t count;
  std::uint32_t position;  // of the first token
  std::uint32_t kv_head;
};

template <int G>
__device__ __forceinline__ void stage_queries(std::byte* to, const AttentionArgs& a, const PrefillWork& work) {
#pragma unroll
  for (std::uint32_t r = threadIdx.x / 8; r < attention_tile_rows; r += prefill_threads / 8) {
    const std::uint32_t token = work.first + min(r / G, work.count - 1), head = work.kv_head * G + r % G, chunk = threadIdx.x % 8;
    copy_async_16(shared_address(to + chunk_offset(r, chunk)),
                  a.queries + (std::uint64_t(token) * a.query_heads + head) * attention_head_dim + chunk * 8);
  }
}

template <int G>
__device__ __forceinline__ void write_row(const AttentionArgs& a, const PrefillWork& work, std::uint32_t r, const float (&o)[8][4], int half,
                                          RowState total) {
  if (r / G >= work.count) return;
  const std::uint32_t head = work.kv_head * G + r % G;
  const float factor = output_factor(total, a.sinks == nullptr ? nullptr : a.sinks + head);
  __nv_bfloat16* const row = a.attended + std::uint64_t(work.first + r / G) * a.attended_stride + head * attention_head_dim;
#pragma unroll
  for (int t = 0; t < 8; ++t)
    reinterpret_cast<std::uint32_t*>(row)[4 * t + threadIdx.x % 4] = output_pair(o[t][2 * half], o[t][2 * half + 1], factor);
}

template <int G>
__global__ void __launch_bounds__(prefill_threads, 1) attention_prefill_kernel(const __grid_constant__ AttentionPrefillArgs args) {
  extern __shared__ __align__(1024) std::byte shared[];  // queries (attention_tile_rows, 64), then (prefill_stages, {keys, values}, kv_segment, 64)
  trigger_next_kernel();
  wait_for_previous_kernel();

  const AttentionArgs& a = args.attention;
  const PrefillTile tile = args.tiles[gridDim.x - 1 - blockIdx.x];  // later tokens see more: begin with them
  if (tile.count <= 0) return;
  const std::int32_t row = a.tokens.rows[tile.first];
  const PrefillWork work{static_cast<std::uint32_t>(tile.first), static_cast<std::uint32_t>(tile.count),
                         static_cast<std::uint32_t>(a.tokens.positions[tile.first]), blockIdx.y};
  if (row < 0) {
    for (std::uint32_t i = threadIdx.x; i < work.count * G * attention_head_dim / 2; i += prefill_threads) {
      const std::uint32_t token = i / (G * attention_head_dim / 2), pair = i % (G * attention_head_dim / 2);
      __nv_bfloat16* const to = a.attended + std::uint64_t(work.first + token) * a.attended_stride + work.kv_head * G * attention_head_dim;
      reinterpret_cast<std::uint32_t*>(to)[pair] = 0;
    }
    return;
  }

  // What the tile sees, and the two rows of this thread.
  const std::uint32_t last_position = work.position + work.count - 1;
  const Visible visible = {visible_from(work.position, a.window).first, last_position + 1};
  const std::uint32_t first = visible.first / kv_segment, segments = last_position / kv_segment - first + 1;
  const std::uint32_t warp_row = threadIdx.x / 32 * 16, own_row = warp_row + threadIdx.x % 32 / 4, group_row = threadIdx.x / 128 * 64;
  const auto sees = [&](std::uint32_t r) { return visible_from(work.position + min(r / G, work.count - 1), a.window); };
  // Segments, counted from the first, of which some row of the warpgroup sees anything; and those that all rows of the warp see whole.
  const std::uint32_t from = sees(group_row).first / kv_segment - first, to = (sees(group_row + 63).end - 1) / kv_segment - first + 1;
  const std::uint32_t whole_from = (sees(warp_row + 15).first + kv_segment - 1) / kv_segment - first,
                      whole_to = sees(warp_row).end / kv_segment - first;

  const HeadPages head = head_pages(a.kv, work.kv_head);
  SegmentPages pages(a.kv, row, visible, first, 1);
  std::byte* const staged = shared + query_bytes;
  stage_queries<G>(shared, a, work);
#pragma unroll
  for (std::uint32_t i = 0; i < prefill_stages - 1; ++i) {
    if (i < segments) stage_segment<prefill_threads>(staged + i * staged_bytes, head, pages, i, pages.visible());
    copy_async_commit();
  }

  RowState total[2];
  float gathered[8][4] = {};
  const std::uint64_t queries = swizzled_operand(shared_address(shared) + group_row * kv_row_bytes);
  std::uint32_t stage = 0;
  for (std::uint32_t i = 0; i < segments; ++i) {
    // Segment i has arrived; everybody is done with segment i - 1, so its place is free for i + 2.
    copy_async_wait<1>();
    fence_async_proxy();
    __syncthreads();
    if (i + 2 < segments) stage_segment<prefill_threads>(staged + (stage == 0 ? 2 : stage - 1) * staged_bytes, head, pages, i + 2, pages.visible());
    copy_async_commit();
    const std::uint32_t keys = shared_address(staged + stage * staged_bytes);
    stage = stage == 2 ? 0 : stage + 1;
    if (i < from || i >= to) continue;

    float s[16][4];
    const std::uint64_t key = swizzled_operand(keys), value = swizzled_transposed_operand(keys + staged_values);
    wgmma_fence();
    wgmma_scores<false>(s, queries, key);
#pragma unroll
    for (int step = 1; step < 4; ++step) wgmma_scores<true>(s, queries + 2 * step, key + 2 * step);
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
    if (i < whole_from || i >= whole_to) {
      mask_scores(s, 0, pages.base(i), sees(own_row));
      mask_scores(s, 1, pages.base(i), sees(own_row + 8));
    }
    RowState segment[2];
    std::uint32_t p[8][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      segment[half].m = scaled_maximum(quad_maximum(lane_maximum(s, half)));
      segment[half].d = weigh(s, half, segment[half].m);
    }
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        p[step][r] = pack_bf16(s[2 * step + r / 2][r % 2 * 2], s[2 * step + r / 2][r % 2 * 2 + 1]);
        hold(p[step][r]);
      }
    float o[8][4];
    wgmma_fence();
    wgmma_values<false>(o, p[0], value);
#pragma unroll
    for (int step = 1; step < 8; ++step) wgmma_values<true>(o, p[step], value + step * (16 * kv_row_bytes / 16));
    wgmma_commit();
    MergeFactors factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      segment[half].d = quad_sum(segment[half].d);
      factors[half] = merge_state(total[half], segment[half]);
    }
    wgmma_wait<0>();
    hold(o);
#pragma unroll
    for (int t = 0; t < 8; ++t)
#pragma unroll
      for (int c = 0; c < 4; ++c) gathered[t][c] = merged(gathered[t][c], o[t][c], factors[c / 2]);
  }
  write_row<G>(a, work, own_row, gathered, 0, total[0]);
  write_row<G>(a, work, own_row + 8, gathered, 1, total[1]);
}

template <int G>
cudaError_t launch_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  auto* kernel = attention_prefill_kernel<G>;
  if (const cudaError_t error = allow_shared_memory(kernel, prefill_shared_bytes); error != cudaSuccess) return error;
  return launch(kernel, {dim3(args.count, args.attention.kv_heads), dim3(prefill_threads), prefill_shared_bytes}, stream, args);
}

}  // namespace

cudaError_t attention_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  if (const cudaError_t error = check_attention(args.attention); error != cudaSuccess) return error;
  if (args.tiles == nullptr) return cudaErrorInvalidValue;
  switch (args.attention.query_heads / args.attention.kv_heads) {
    case 1:
      return launch_prefill<1>(args, stream);
    case 2:
      return launch_prefill<2>(args, stream);
    case 4:
      return launch_prefill<4>(args, stream);
    default:
      return launch_prefill<8>(args, stream);
  }
}

}  // namespace althing::gpu::cuda
