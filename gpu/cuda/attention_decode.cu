// Attention of single tokens. Contract: attention.hpp; the math: attention_segment.cuh.
//
// A block has one (list entry, KV head, split): it walks over every splits-th visible segment. All four warps work on one segment: each scores a
// quarter of its positions, the maxima and weights meet in shared memory, then each gathers 16 of the 64 dims over all positions. The query heads of
// the KV head are rows 0-7 of the operand; rows 8-15 are zero. A block that has a token alone merges as it goes. Otherwise segments go to the
// scratch, and the last block to arrive merges them in order.
#include "gpu/cuda/attention.hpp"

#include <cuda_runtime.h>

#include "gpu/cuda/attention_segment.cuh"
#include "gpu/cuda/launch.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t decode_threads = 128;
constexpr std::uint32_t decode_stages = 3;
constexpr std::uint32_t decode_shared_bytes = decode_stages * staged_bytes;

// One (list entry, KV head).
struct DecodeUnit {
  std::uint32_t number;
  std::uint32_t token;
  std::uint32_t kv_head;
  std::uint32_t segments;  // visible
};

// A unit's place in the scratch.
struct Partials {
  float* o;       // (segments, G, 64)
  float2* state;  // (segments, G): m, d
};

template <int G>
__device__ __forceinline__ Partials partials_of(const AttentionDecodeArgs& args, std::uint32_t unit) {
  const std::uint64_t rows = std::uint64_t(args.segments_max) * G, units = std::uint64_t(args.count) * args.attention.kv_heads;
  float* const begin = reinterpret_cast<float*>(static_cast<std::byte*>(args.scratch) + attention_tickets_max * sizeof(std::uint32_t));
  return {begin + unit * rows * attention_head_dim, reinterpret_cast<float2*>(begin + units * rows * attention_head_dim) + unit * rows};
}

__device__ __forceinline__ __nv_bfloat16* output_row(const AttentionArgs& a, std::uint32_t token, std::uint32_t head) {
  return a.attended + std::uint64_t(token) * a.attended_stride + head * attention_head_dim;
}

// All segments of a unit, in order, by one block. 16 threads have a head, each four dims; a thread's own pieces of o come through the staging memory,
// 16 segments a group, three groups on their way. Lane k of 16 works out the factors of segment k of a group.
template <int G>
__device__ __forceinline__ void merge_partials(const AttentionDecodeArgs& args, const DecodeUnit& unit, std::byte* staged) {
  const std::uint32_t g = threadIdx.x / 16, sub = threadIdx.x % 16;
  if (threadIdx.x / 32 * 2 >= G) return;        // whole warps
  const std::uint32_t row = g < G ? g : G - 1;  // with G = 1 the second half of the warp repeats the first
  const Partials from = partials_of<G>(args, unit.number);
  float4* const pieces = reinterpret_cast<float4*>(staged) + threadIdx.x;
  const auto fetch = [&](std::uint32_t group) {
#pragma unroll
    for (std::uint32_t k = 0; k < 16; ++k) {
      const std::uint32_t i = group * 16 + k;
      if (i < unit.segments)
        copy_async_16(shared_address(pieces + (group % 3 * 16 + k) * decode_threads),
                      from.o + (std::uint64_t(i) * G + row) * attention_head_dim + sub * 4);
    }
    copy_async_commit();
  };
  const auto state = [&](std::uint32_t group) {
    const std::uint32_t i = group * 16 + sub;
    return i < unit.segments ? __ldcg(from.state + std::uint64_t(i) * G + row) : make_float2(minus_infinity, 0.0F);
  };

  fetch(0);
  fetch(1);
  fetch(2);
  float2 next = state(0);
  RowState total;
  float o[4] = {};
  for (std::uint32_t group = 0; group * 16 < unit.segments; ++group) {
    const float2 own = next;
    next = state(group + 1);
    // The largest m up to the lane's own segment, and up to the one before.
    float upto = fmaxf(total.m, own.x);
#pragma unroll
    for (int step = 1; step < 16; step *= 2) upto = fmaxf(upto, __shfl_up_sync(0xFFFFFFFFu, upto, step, 16));
    const float before = __shfl_up_sync(0xFFFFFFFFu, upto, 1, 16);
    const MergeFactors factors = merge_factors(sub == 0 ? total.m : before, own.x);
    copy_async_wait<2>();
    const std::uint32_t here = min(16u, unit.segments - group * 16);
#pragma unroll 4
    for (std::uint32_t k = 0; k < here; ++k) {
      const MergeFactors f = {__shfl_sync(0xFFFFFFFFu, factors.keep, k, 16), __shfl_sync(0xFFFFFFFFu, factors.add, k, 16)};
      const float4 piece = pieces[(group % 3 * 16 + k) * decode_threads];
      total.d = merged(total.d, __shfl_sync(0xFFFFFFFFu, own.y, k, 16), f);
      o[0] = merged(o[0], piece.x, f);
      o[1] = merged(o[1], piece.y, f);
      o[2] = merged(o[2], piece.z, f);
      o[3] = merged(o[3], piece.w, f);
    }
    total.m = __shfl_sync(0xFFFFFFFFu, upto, 15, 16);
    __syncwarp();
    fetch(group + 3);
  }
  if (g >= G) return;
  const AttentionArgs& a = args.attention;
  const std::uint32_t head = unit.kv_head * G + g;
  const float factor = output_factor(total, a.sinks == nullptr ? nullptr : a.sinks + head);
  std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(output_row(a, unit.token, head)) + sub * 2;
  to[0] = output_pair(o[0], o[1], factor);
  to[1] = output_pair(o[2], o[3], factor);
}

template <int G>
__global__ void __launch_bounds__(decode_threads, 2) attention_decode_kernel(const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(1024) std::byte staged[];  // (decode_stages, {keys, values}, kv_segment, 64)
  __shared__ float maxima[4][32], sums[4][32];           // (warp, lane)
  __shared__ uint2 weights[8][32];                       // (k16 step, lane): a[0] and a[2] of the weights
  __shared__ bool last;
  trigger_next_kernel();
  wait_for_previous_kernel();

  const AttentionArgs& a = args.attention;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const std::uint32_t split = blockIdx.x;
  const std::int32_t listed = args.list[blockIdx.z];
  if (listed < 0) return;
  DecodeUnit unit{blockIdx.z * a.kv_heads + blockIdx.y, static_cast<std::uint32_t>(listed), blockIdx.y, 0};
  const std::int32_t row = a.tokens.rows[unit.token];
  if (row < 0) {
    if (split == 0)
      for (std::uint32_t i = threadIdx.x; i < G * attention_head_dim / 2; i += decode_threads)
        reinterpret_cast<std::uint32_t*>(output_row(a, unit.token, unit.kv_head * G))[i] = 0;
    return;
  }

  // The block's share of the visible segments.
  const Visible visible = visible_from(a.tokens.positions[unit.token], a.window);
  const std::uint32_t first = visible.first / kv_segment;
  unit.segments = (visible.end - 1) / kv_segment - first + 1;
  const std::uint32_t blocks = unit.segments > args.segments_max ? 1 : min(args.splits, unit.segments);
  if (split >= blocks) return;
  const std::uint32_t mine = (unit.segments - split + blocks - 1) / blocks;

  const HeadPages head = head_pages(a.kv, unit.kv_head);
  SegmentPages pages(a.kv, row, visible, first + split, blocks);
#pragma unroll
  for (std::uint32_t i = 0; i < decode_stages; ++i) {
    if (i < mine) stage_segment<decode_threads>(staged + i * staged_bytes, head, pages, i);
    copy_async_commit();
  }

  std::uint32_t queries[4][4] = {};
  if (g < G) {
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(a.queries + (std::uint64_t(unit.token) * a.query_heads + unit.kv_head * G + g) * attention_head_dim);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      queries[step][0] = from[8 * step + q];
      queries[step][2] = from[8 * step + 4 + q];
    }
  }

  RowState total;
  float gathered[2][2] = {};  // (dims 16 warp + 8 t + 2 q, + 1) of row g
  const Partials to = partials_of<G>(args, unit.number);
  std::uint32_t stage = 0;
  for (std::uint32_t i = 0; i < mine; ++i) {
    // Segment i has arrived; everybody is done with segment i - 1, so its place is free for i + 2.
    if (i == 0) {
      copy_async_wait<2>();
    } else {
      copy_async_wait<1>();
    }
    __syncthreads();
    if (i > 0) {
      if (i + 2 < mine) stage_segment<decode_threads>(staged + (stage == 0 ? 2 : stage - 1) * staged_bytes, head, pages, i + 2);
      copy_async_commit();
    }
    const std::uint32_t keys = shared_address(staged + stage * staged_bytes), base = pages.base(i);
    stage = stage == 2 ? 0 : stage + 1;

    // Scores of the warp's quarter.
    float s[4][4];
    score(s, queries, keys + warp * 32 * kv_row_bytes);
    if (base < visible.first || base + kv_segment > visible.end) mask_scores(s, 0, base + warp * 32, visible);
    maxima[warp][lane] = lane_maximum(s, 0);
    __syncthreads();

    // Weights, with the largest score of the whole segment.
    RowState segment;
    segment.m = scaled_maximum(quad_maximum(fmaxf(fmaxf(maxima[0][lane], maxima[1][lane]), fmaxf(maxima[2][lane], maxima[3][lane]))));
    sums[warp][lane] = weigh(s, 0, segment.m);
#pragma unroll
    for (int step = 0; step < 2; ++step)
      weights[2 * warp + step][lane] = make_uint2(pack_bf16(s[2 * step][0], s[2 * step][1]), pack_bf16(s[2 * step + 1][0], s[2 * step + 1][1]));
    __syncthreads();

    // The warp's 16 dims.
    segment.d = quad_sum(__fadd_rn(__fadd_rn(__fadd_rn(sums[0][lane], sums[1][lane]), sums[2][lane]), sums[3][lane]));
    float o[2][4] = {};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint2 pair = weights[step][lane];
      const std::uint32_t p[4] = {pair.x, 0, pair.y, 0};
      add_values(o[0], o[1], p, keys + staged_values, 16 * step, 2 * warp);
    }
    if (blocks == 1) {
      const MergeFactors f = merge_state(total, segment);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        gathered[t][0] = merged(gathered[t][0], o[t][0], f);
        gathered[t][1] = merged(gathered[t][1], o[t][1], f);
      }
    } else if (g < G) {
      const std::uint64_t at = std::uint64_t(split + i * blocks) * G + g;
      float2* const piece = reinterpret_cast<float2*>(to.o + at * attention_head_dim) + 8 * warp + q;
      piece[0] = make_float2(o[0][0], o[0][1]);
      piece[4] = make_float2(o[1][0], o[1][1]);
      if (warp == 0 && q == 0) to.state[at] = make_float2(segment.m, segment.d);
    }
  }

  if (blocks == 1) {
    if (g >= G) return;
    const std::uint32_t query_head = unit.kv_head * G + g;
    const float factor = output_factor(total, a.sinks == nullptr ? nullptr : a.sinks + query_head);
    std::uint32_t* const out = reinterpret_cast<std::uint32_t*>(output_row(a, unit.token, query_head)) + 8 * warp + q;
    out[0] = output_pair(gathered[0][0], gathered[0][1], factor);
    out[4] = output_pair(gathered[1][0], gathered[1][1], factor);
    return;
  }
  // The last block finds all segments in the scratch, and leaves the ticket as the next launch needs it.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t* const ticket = static_cast<std::uint32_t*>(args.scratch) + unit.number;
    last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) *ticket = 0;
    __threadfence();
  }
  __syncthreads();
  if (last) merge_partials<G>(args, unit, staged);
}

template <int G>
cudaError_t launch_decode(const AttentionDecodeArgs& args, cudaStream_t stream) {
  auto* kernel = attention_decode_kernel<G>;
  if (const cudaError_t error = allow_shared_memory(kernel, decode_shared_bytes); error != cudaSuccess) return error;
  return launch(kernel, {dim3(args.splits, args.attention.kv_heads, args.count), dim3(decode_threads), decode_shared_bytes}, stream, args);
}

}  // namespace

cudaError_t attention_decode(const AttentionDecodeArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const AttentionArgs& a = args.attention;
  if (const cudaError_t error = check_attention(a); error != cudaSuccess) return error;
  if (args.splits == 0 || args.list == nullptr) return cudaErrorInvalidValue;
  if (args.splits > 1 && (args.scratch == nullptr || std::uint64_t{args.count} * a.kv_heads > attention_tickets_max)) return cudaErrorInvalidValue;
  switch (a.query_heads / a.kv_heads) {
    case 1:
      return launch_decode<1>(args, stream);
    case 2:
      return launch_decode<2>(args, stream);
    case 4:
      return launch_decode<4>(args, stream);
    default:
      return launch_decode<8>(args, stream);
  }
}

}  // namespace althing::gpu::cuda
