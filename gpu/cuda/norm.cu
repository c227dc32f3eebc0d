// See norm.hpp. Orders of sums (norm_math.cuh): begin_step and combine_norm by a block, norm_route by a warp.
#include "gpu/cuda/norm.hpp"

#include <cooperative_groups.h>

#include <algorithm>

#include "gpu/cuda/cluster.cuh"
#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/norm_math.cuh"
#include "gpu/cuda/weight_tile.cuh"
#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t route_tokens = 8;  // of one cluster

// Each thread owns elements threadIdx.x + i * norm_threads of the row, in registers: everything is loaded before anything is used.
template <int Elements>
__device__ __forceinline__ void write_normed(const float (&x)[Elements], const float* norm, std::uint32_t hidden, float epsilon, float* residual,
                                             __nv_bfloat16* normed) {
  __shared__ float parts[norm_threads / 32];
  float weights[Elements], squares = 0.0F;
#pragma unroll
  for (int i = 0; i < Elements; ++i) {
    const std::uint32_t at = threadIdx.x + i * norm_threads;
    weights[i] = at < hidden ? norm[at] : 0.0F;
    if (at < hidden) squares = __fmaf_rn(x[i], x[i], squares);
  }
  leave_part(squares, parts);
  __syncthreads();
  const float inverse = inverse_root(sum_of_parts(parts), hidden, epsilon);
#pragma unroll
  for (int i = 0; i < Elements; ++i) {
    const std::uint32_t at = threadIdx.x + i * norm_threads;
    if (at >= hidden) break;
    residual[at] = x[i];
    normed[at] = __float2bfloat16_rn(x[i] * inverse * weights[i]);
  }
}

template <int Elements>  // of a thread
__global__ void __launch_bounds__(norm_threads) begin_kernel(const __grid_constant__ BeginArgs a) {
  wait_for_previous_kernel();
  trigger_next_kernel();
  const std::uint32_t t = blockIdx.x;
  if (t == 0) {
    for (std::uint32_t i = threadIdx.x; i < a.experts; i += norm_threads) a.counts[i] = 0;
    if (threadIdx.x == 0 && a.step != nullptr) ++*a.step;
    for (std::uint32_t i = threadIdx.x; i < a.cleared_words; i += norm_threads) a.cleared[i] = 0;
    for (std::uint32_t i = threadIdx.x; i < a.tally_words; i += norm_threads) a.tallies[i] = 0;
    for (std::uint32_t i = threadIdx.x; i < *a.update_count; i += norm_threads) *a.updates[i].entry = a.updates[i].page;
  }
  if (t >= a.tokens.count) return;  // a step without tokens
  const std::int32_t row = a.tokens.rows[t];
  if (threadIdx.x < a.half) {
    // The angle is a float product, as in the reference; its cosine is taken in double and rounded once.
    const double angle = static_cast<float>(a.tokens.positions[t]) * a.inverse_frequencies[threadIdx.x];
    a.cosine[std::uint64_t(t) * a.half + threadIdx.x] = static_cast<float>(cos(angle)) * a.attention_factor;
    a.sine[std::uint64_t(t) * a.half + threadIdx.x] = static_cast<float>(sin(angle)) * a.attention_factor;
  }
  std::int32_t id = a.ids[t];
  if (id < 0) id = row < 0 ? 0 : a.last_drawn[row];
  float x[Elements];
#pragma unroll
  for (int i = 0; i < Elements; ++i) {
    const std::uint32_t at = threadIdx.x + i * norm_threads;
    x[i] = at < a.hidden ? __bfloat162float(a.table[std::uint64_t(id) * a.hidden + at]) : 0.0F;
  }
  write_normed(x, a.norm, a.hidden, a.epsilon, a.residual + std::uint64_t(t) * a.hidden, a.normed + std::uint64_t(t) * a.stride);
}

template <int Elements>  // of a thread
__global__ void __launch_bounds__(norm_threads) combine_norm_kernel(const __grid_constant__ CombineNormArgs a) {
  trigger_next_kernel();
  wait_for_previous_kernel();
  const std::uint32_t t = blockIdx.x;
  if (t == 0)
    for (std::uint32_t i = threadIdx.x; i < a.experts; i += norm_threads) a.routing.counts[i] = 0;
  const std::uint32_t k = a.experts_per_token, first = t * k;
  const bool real = a.tokens.rows[t] >= 0;
  float* const residual = a.residual + std::uint64_t(t) * a.hidden;
  float x[Elements];
  long long sum[Elements] = {};
  unsigned misfits = 0;  // bits of elements
#pragma unroll
  for (int i = 0; i < Elements; ++i) {
    const std::uint32_t at = threadIdx.x + i * norm_threads;
    x[i] = at < a.hidden ? residual[at] : 0.0F;
  }
  for (std::uint32_t c = 0; real && c < k; c += 2) {
    float output[2][Elements];
    float weight[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weight[j] = c + j < k ? a.routing.weights[first + c + j] : 0.0F;
#pragma unroll
      for (int i = 0; i < Elements; ++i) {
        const std::uint32_t at = threadIdx.x + i * norm_threads;
        output[j][i] = at < a.hidden && c + j < k ? a.outputs[std::uint64_t(first + c + j) * a.hidden + at] : 0.0F;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < Elements; ++i) {
        const FixedPointAddend addend = fixed_point_addend(weight[j], output[j][i]);
        if (!addend.fits) misfits |= 1u << i;
        sum[i] += addend.value;
      }
  }
#pragma unroll
  for (int i = 0; i < Elements; ++i)
    x[i] += (misfits >> i & 1u) == 0 ? static_cast<float>(static_cast<double>(sum[i]) * fixed_point_unit) : __int_as_float(0x7FC00000);
  write_normed(x, a.norm, a.hidden, a.epsilon, residual, a.normed + std::uint64_t(t) * a.stride);
}

__device__ __forceinline__ unsigned long long fixed_point_of(float value, double unit) {
  return static_cast<unsigned long long>(__double2ll_rn(static_cast<double>(value) * unit));
}
__device__ __forceinline__ unsigned long long router_figure(float value) {
  return fixed_point_of(fminf(fmaxf(value, 0.0F), static_cast<float>(router_figure_max)), router_figure_unit);
}

// One warp. Whether all logits are numbers.
__device__ __forceinline__ bool finite_logits(const float* logits, std::uint32_t experts) {
  bool finite = true;
  for (std::uint32_t e = threadIdx.x % 32; e < experts; e += 32) finite = finite && isfinite(logits[e]);
  return __all_sync(0xFFFFFFFFu, finite) != 0;
}

// One warp: figures of the router for one token (RouterSums), from sums of how far each logit lies below the largest.
__device__ void tally_router(const RouteTallies& tallies, const float* logits, std::uint32_t experts) {
  if (!finite_logits(logits, experts)) return;
  const std::uint32_t lane = threadIdx.x % 32;
  float first = -INFINITY, second = -INFINITY;  // the lane's largest two
  for (std::uint32_t e = lane; e < experts; e += 32) {
    second = fmaxf(second, fminf(first, logits[e]));
    first = fmaxf(first, logits[e]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, first, mask), others = __shfl_xor_sync(0xFFFFFFFFu, second, mask);
    second = fmaxf(fmaxf(second, others), fminf(first, other));
    first = fmaxf(first, other);
  }
  float weights = 0.0F, weighted = 0.0F, sum = 0.0F, squares = 0.0F;
  for (std::uint32_t e = lane; e < experts; e += 32) {
    const float below = first - logits[e], weight = exp2_fast(-below * log2_e);
    weights += weight;
    weighted += weight * below;
    sum += below;
    squares += below * below;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    weights += __shfl_xor_sync(0xFFFFFFFFu, weights, mask);
    weighted += __shfl_xor_sync(0xFFFFFFFFu, weighted, mask);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
    squares += __shfl_xor_sync(0xFFFFFFFFu, squares, mask);
  }
  const float count = static_cast<float>(experts), mean = sum / count;
  const float figure = lane == 1     ? logf(weights) + weighted / weights
                       : lane == 2   ? squares / count - mean * mean
                       : experts < 2 ? 0.0F
                                     : first - second;
  if (lane < router_sums) atomicAdd(tallies.router + lane, lane == 0 ? 1ull : router_figure(figure));
}

// One warp: the token's experts, and the pairs' places in their experts' lists.
__device__ void route_token(const NormRouteArgs& a, const float* logits, std::uint32_t t, bool real) {
  const std::uint32_t lane = threadIdx.x % 32, k = a.experts_per_token;
  const ExpertChoice own = choose_experts(logits, a.weights.out, k);
  const bool finite = a.tallies.tokens != nullptr && finite_logits(logits, a.weights.out);
  if (lane >= k) return;
  const std::uint32_t pair = t * k + lane;
  a.routing.chosen[pair] = real ? own.expert : -1;
  a.routing.weights[pair] = real ? own.weight : 0.0F;
  if (!real) return;
  const std::uint32_t place = atomicAdd(a.routing.counts + own.expert, 1u);
  a.routing.pairs[std::uint64_t(own.expert) * a.routing.capacity + place] = static_cast<std::int32_t>(pair);
  if (a.tallies.tokens == nullptr) return;
  atomicAdd(a.tallies.tokens + own.expert, 1ull);
  if (!finite) return;
  const unsigned long long weight = fixed_point_of(own.weight, gate_weight_unit);
  atomicAdd(a.tallies.gate_weights + own.expert, weight);
  atomicAdd(a.tallies.places + lane, weight);
}

// Normed tokens, the warps' sums, the norm's weights; the router's rows follow, a segment a warp.
constexpr std::uint32_t route_shared_bytes(std::uint32_t hidden, std::uint32_t warps, std::uint32_t tokens) {
  return ((tokens < route_tokens ? tokens : route_tokens) * (k_padded(hidden) + 8) * 2 + warps * 512 + hidden * 4 + 127) / 128 * 128;
}

// A cluster takes 8 tokens; its blocks share the router's rows, 16 each, and norm the tokens each for itself. Warps are K segments.
template <int LaneGroups>  // of four elements
__global__ void __launch_bounds__(512) norm_route_kernel(const __grid_constant__ NormRouteArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float logits[route_tokens][128];  // of the first and the last block of the cluster: all experts
  const auto cluster = cooperative_groups::this_cluster();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, part = cluster.block_rank();
  const std::uint32_t first = blockIdx.x / cluster.num_blocks() * route_tokens, count = min(route_tokens, a.tokens.count - first);
  const std::uint32_t tiles = k_tiles(a.hidden), seg = k_segment_tiles(a.hidden), pitch = tiles * k_tile + 8;
  __nv_bfloat16* const inputs = reinterpret_cast<__nv_bfloat16*>(shared);                                                      // (8, pitch)
  float4* const sums = reinterpret_cast<float4*>(shared + min(a.tokens.count, route_tokens) * pitch * sizeof(__nv_bfloat16));  // (warps, 32)
  float4* const norm = sums + warps * 32;                                                                                      // (hidden / 4)

  cluster_arrive();  // nobody may write to a block that has not begun
  __shared__ std::uint64_t barriers[16];
  std::byte* const segment = shared + route_shared_bytes(a.hidden, warps, a.tokens.count) + warp * seg * tile_bytes(WeightFormat::bf16);
  const std::uint32_t k_first = warp * seg, k_count = min(seg, tiles - k_first);
  const std::uint32_t barrier = shared_address(barriers + warp), segment_bytes = k_count * tile_bytes(WeightFormat::bf16);
  if (lane == 0) {
    mbarrier_init(barrier, 1);
    fence_barrier_init();
    mbarrier_expect(barrier, segment_bytes);
    copy_expected(shared_address(segment), a.weights.data + (std::uint64_t(part) * tiles + k_first) * tile_bytes(WeightFormat::bf16), segment_bytes,
                  barrier);
  }
  for (std::uint32_t i = threadIdx.x; i < a.hidden / 4; i += blockDim.x) copy_async_16(shared_address(norm + i), a.norm + 4 * i);
  copy_async_commit();
  trigger_next_kernel();
  wait_for_previous_kernel();
  copy_async_wait<0>();
  __syncthreads();

  for (std::uint32_t c = warp; c < count; c += warps) {
    const std::uint32_t t = first + c;
    const float4* x = reinterpret_cast<const float4*>(a.residual + std::uint64_t(t) * a.hidden);
    float4 v[LaneGroups];
#pragma unroll
    for (int i = 0; i < LaneGroups; ++i) v[i] = lane + 32 * i < a.hidden / 4 ? x[lane + 32 * i] : make_float4(0, 0, 0, 0);
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < LaneGroups; ++i) squares = add_squares(squares, v[i]);
    const float inverse = inverse_root(sum_of_warp(squares), a.hidden, a.epsilon);
#pragma unroll
    for (int i = 0; i < LaneGroups; ++i) {
      const std::uint32_t group = lane + 32 * i;
      if (group >= k_padded(a.hidden) / 4) break;
      uint2 packed = make_uint2(0, 0);
      if (group < a.hidden / 4) {
        const float4 w = norm[group];
        packed = make_uint2(pack_bf16(v[i].x * inverse * w.x, v[i].y * inverse * w.y), pack_bf16(v[i].z * inverse * w.z, v[i].w * inverse * w.w));
        if (part == 0) *reinterpret_cast<uint2*>(a.normed + std::uint64_t(t) * a.stride + 4 * group) = packed;
      }
      *reinterpret_cast<uint2*>(inputs + c * pitch + 4 * group) = packed;
    }
  }
  __syncthreads();

  float chain[4] = {0.0F, 0.0F, 0.0F, 0.0F};
  const std::uint32_t column = shared_address(inputs + (lane % 8 < count ? lane % 8 : 0) * pitch) + lane / 8 * 16 + k_first * k_tile * 2;
  mbarrier_wait(barrier, 0);
  for (std::uint32_t i = 0; i < k_count; ++i) {
    WeightTile<WeightFormat::bf16> weights;
    weights.load_shared(segment + i * tile_bytes(WeightFormat::bf16), lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t b[4], a0[4], a1[4];
      load_matrix_x4(b, column + i * k_tile * 2 + half * 64);
      weights.operand(2 * half, a0);
      weights.operand(2 * half + 1, a1);
      mma_bf16(chain, a0, b[0], b[1]);
      mma_bf16(chain, a1, b[2], b[3]);
    }
  }
  sums[warp * 32 + lane] = make_float4(chain[0], chain[1], chain[2], chain[3]);
  __syncthreads();
  cluster_wait();
  if (warp == 0) {
    float4 sum = sums[lane];
    for (std::uint32_t s = 1; s < warps; ++s) {
      const float4 next = sums[s * 32 + lane];
      sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
    }
    float(*first_block)[128] = cluster.map_shared_rank(logits, 0);
    float(*last_block)[128] = cluster.map_shared_rank(logits, cluster.num_blocks() - 1);
    const std::uint32_t expert = part * row_tile + lane / 4, c = lane % 4 * 2;
    const auto put = [&](std::uint32_t e, std::uint32_t token, float value) {
      if (e >= a.weights.out || token >= count) return;
      if (a.bias != nullptr) value += a.bias[e];
      first_block[token][e] = value;
      last_block[token][e] = value;
      if (a.logits != nullptr) a.logits[std::uint64_t(first + token) * a.weights.out + e] = value;
    };
    put(expert, c, sum.x), put(expert, c + 1, sum.y), put(expert + 8, c, sum.z), put(expert + 8, c + 1, sum.w);
  }
  cluster.sync();
  if (part == 0)
    for (std::uint32_t c = warp; c < count; c += warps) route_token(a, logits[c], first + c, a.tokens.rows[first + c] >= 0);
  // By another block where there is one, so that figures are ready when experts are.
  if (a.tallies.tokens == nullptr || part != cluster.num_blocks() - 1) return;
  for (std::uint32_t c = warp; c < count; c += warps)
    if (a.tokens.rows[first + c] >= 0) tally_router(a.tallies, logits[c], a.weights.out);
}

__global__ void __launch_bounds__(256) gather_kernel(const __grid_constant__ GatherArgs a) {
  trigger_next_kernel();
  wait_for_previous_kernel();
  const uint4* from = reinterpret_cast<const uint4*>(a.input + std::uint64_t(a.list[blockIdx.x]) * a.stride);
  uint4* to = reinterpret_cast<uint4*>(a.output + std::uint64_t(blockIdx.x) * a.stride);
  for (std::uint32_t i = threadIdx.x; i < a.stride / 8; i += blockDim.x) to[i] = from[i];
}

}  // namespace

cudaError_t gather_rows(const GatherArgs& args, cudaStream_t stream) { return launch(gather_kernel, {dim3(args.count), dim3(256)}, stream, args); }

cudaError_t begin_step(const BeginArgs& args, cudaStream_t stream) {
  auto* kernel = args.hidden <= norm_threads ? begin_kernel<1> : args.hidden <= 6 * norm_threads ? begin_kernel<6> : begin_kernel<8>;
  return launch(kernel, {dim3(std::max(args.tokens.count, 1u)), dim3(norm_threads)}, stream, args);
}

cudaError_t combine_norm(const CombineNormArgs& args, cudaStream_t stream) {
  auto* kernel = args.hidden <= norm_threads       ? combine_norm_kernel<1>
                 : args.hidden <= 6 * norm_threads ? combine_norm_kernel<6>
                                                   : combine_norm_kernel<8>;
  return launch(kernel, {dim3(args.tokens.count), dim3(norm_threads)}, stream, args);
}

cudaError_t norm_route(const NormRouteArgs& args, cudaStream_t stream) {
  const unsigned cluster = args.weights.row_tiles();
  const std::uint32_t warps = k_segments(args.hidden);
  const std::size_t shared =
      route_shared_bytes(args.hidden, warps, args.tokens.count) + std::size_t{warps} * k_segment_tiles(args.hidden) * tile_bytes(WeightFormat::bf16);
  auto* kernel = args.hidden <= 256 ? norm_route_kernel<2> : args.hidden <= 2944 ? norm_route_kernel<23> : norm_route_kernel<32>;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  return launch(kernel, {dim3(cluster * ceil_div(args.tokens.count, route_tokens)), dim3(warps * 32), shared, cluster}, stream, args);
}

}  // namespace althing::gpu::cuda
