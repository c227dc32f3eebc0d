// See norm.hpp. Orders of sums. begin_step and combine_norm: a thread's elements ascending in one chain, then lanes by xor 16, 8, 4, 2, 1, then warps ascending.
// norm_route: a lane's groups of four ascending in one chain, then the same tree over lanes.
#include "gpu/cuda/norm.hpp"

#include <cooperative_groups.h>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/ops/fixed_point.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t norm_threads = 512;
constexpr std::uint32_t route_tokens = 8;  // of one cluster
constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(all_lanes, value, mask);
  return value;
}

// The same on all threads.
__device__ float sum_of_block(float value) {
  __shared__ float parts[norm_threads / 32];
  value = sum_of_warp(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
#pragma unroll
  for (std::uint32_t w = 0; w < norm_threads / 32; ++w) sum += parts[w];
  return sum;
}

__device__ __forceinline__ float inverse_root(float squares, std::uint32_t hidden, float epsilon) {
  return __frsqrt_rn(__fdiv_rn(squares, static_cast<float>(hidden)) + epsilon);
}

// Each thread owns elements threadIdx.x + i * norm_threads of the row and has written them itself.
__device__ void write_normed(const float* residual, const float* norm, float squares, std::uint32_t hidden, float epsilon, __nv_bfloat16* normed) {
  const float inverse = inverse_root(sum_of_block(squares), hidden, epsilon);
  for (std::uint32_t i = threadIdx.x; i < hidden; i += norm_threads) normed[i] = __float2bfloat16_rn(residual[i] * inverse * norm[i]);
}

__global__ void __launch_bounds__(norm_threads) begin_kernel(const __grid_constant__ BeginArgs a) {
  wait_for_previous_kernel();
  trigger_next_kernel();
  const std::uint32_t t = blockIdx.x;
  if (t == 0) {
    for (std::uint32_t i = threadIdx.x; i < a.experts; i += norm_threads) a.counts[i] = 0;
    for (std::uint32_t i = threadIdx.x; i < *a.update_count; i += norm_threads) *a.updates[i].entry = a.updates[i].page;
  }
  const std::int32_t row = a.tokens.rows[t];
  if (threadIdx.x < a.half) {
    // The angle is a float product, as in the reference; its cosine is taken in double and rounded once.
    const double angle = static_cast<float>(a.tokens.positions[t]) * a.inverse_frequencies[threadIdx.x];
    a.cosine[std::uint64_t(t) * a.half + threadIdx.x] = static_cast<float>(cos(angle)) * a.attention_factor;
    a.sine[std::uint64_t(t) * a.half + threadIdx.x] = static_cast<float>(sin(angle)) * a.attention_factor;
  }
  std::int32_t id = a.ids[t];
  if (id < 0) id = row < 0 ? 0 : a.last_drawn[row];
  float* residual = a.residual + std::uint64_t(t) * a.hidden;
  float squares = 0.0F;
  for (std::uint32_t i = threadIdx.x; i < a.hidden; i += norm_threads) {
    const float x = __bfloat162float(a.table[std::uint64_t(id) * a.hidden + i]);
    residual[i] = x;
    squares = __fmaf_rn(x, x, squares);
  }
  write_normed(residual, a.norm, squares, a.hidden, a.epsilon, a.normed + std::uint64_t(t) * a.stride);
}

__global__ void __launch_bounds__(norm_threads) combine_norm_kernel(const __grid_constant__ CombineNormArgs a) {
  trigger_next_kernel();
  wait_for_previous_kernel();
  const std::uint32_t t = blockIdx.x;
  if (t == 0)
    for (std::uint32_t i = threadIdx.x; i < a.experts; i += norm_threads) a.routing.counts[i] = 0;
  const std::uint32_t k = a.experts_per_token, first = t * k;
  float* residual = a.residual + std::uint64_t(t) * a.hidden;
  const bool real = a.tokens.rows[t] >= 0;
  float squares = 0.0F;
  for (std::uint32_t i = threadIdx.x; i < a.hidden; i += norm_threads) {
    long long sum = 0;
    bool fits = true;
    for (std::uint32_t c = 0; real && c < k; ++c) {
      // Exact: two floats multiply without rounding in double.
      const double value = static_cast<double>(a.routing.weights[first + c]) * static_cast<double>(a.outputs[std::uint64_t(first + c) * a.hidden + i]);
      if (fabs(value) < fixed_point_limit) {
        sum += __double2ll_rn(value * 0x1p36);
      } else {
        fits = false;  // NaN too
      }
    }
    const float x = residual[i] + (fits ? static_cast<float>(static_cast<double>(sum) * fixed_point_unit) : __int_as_float(0x7FC00000));
    residual[i] = x;
    squares = __fmaf_rn(x, x, squares);
  }
  write_normed(residual, a.norm, squares, a.hidden, a.epsilon, a.normed + std::uint64_t(t) * a.stride);
}

// One warp: the k largest of `logits`, softmax over them, and the pairs' places in their experts' lists.
__device__ void choose_experts(const NormRouteArgs& a, const float* logits, std::uint32_t t, bool real) {
  const std::uint32_t lane = threadIdx.x % 32, k = a.experts_per_token, experts = a.weights.out;
  float mine[4];
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) mine[i] = lane + 32 * i < experts ? logits[lane + 32 * i] : -INFINITY;
  unsigned taken = 0;  // bits of `mine`
  float first = 0.0F, sum = 0.0F, own_weight = 0.0F;
  std::int32_t own_expert = -1;
  for (std::uint32_t c = 0; c < k; ++c) {
    float best = -INFINITY;
    std::uint32_t at = 0xFFFFu;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (lane + 32 * i >= experts || (taken >> i & 1u) != 0) continue;
      if (at == 0xFFFFu || mine[i] > best) best = mine[i], at = lane + 32 * i;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = __shfl_xor_sync(all_lanes, best, mask);
      const std::uint32_t other_at = __shfl_xor_sync(all_lanes, at, mask);
      // NaN never wins against a number, and the smaller id wins against an equal.
      if (other_at != 0xFFFFu && (at == 0xFFFFu || other > best || (!(best > other) && other_at < at))) best = other, at = other_at;
    }
    if (at % 32 == lane) taken |= 1u << (at / 32);
    if (c == 0) first = best;
    const float weight = exp2_fast((best - first) * log2_e);
    sum += weight;
    if (lane == c) own_expert = static_cast<std::int32_t>(at), own_weight = weight;
  }
  if (lane >= k) return;
  const std::uint32_t pair = t * k + lane;
  a.routing.chosen[pair] = real ? own_expert : -1;
  a.routing.weights[pair] = real ? __fdiv_rn(own_weight, sum) : 0.0F;
  if (!real) return;
  const std::uint32_t place = atomicAdd(a.routing.counts + own_expert, 1u);
  a.routing.pairs[std::uint64_t(own_expert) * a.routing.capacity + place] = static_cast<std::int32_t>(pair);
  if (a.totals != nullptr) atomicAdd(a.totals + own_expert, 1ull);
}

// A cluster takes 8 tokens; its blocks share the router's rows, 16 each, and norm the tokens each for itself. Warps are K segments.
__global__ void __launch_bounds__(512) norm_route_kernel(const __grid_constant__ NormRouteArgs a) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float logits[route_tokens][128];  // of the first block of the cluster: all experts
  const auto cluster = cooperative_groups::this_cluster();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, part = cluster.block_rank();
  const std::uint32_t first = blockIdx.x / cluster.num_blocks() * route_tokens, count = min(route_tokens, a.tokens.count - first);
  const std::uint32_t tiles = k_tiles(a.hidden), seg = k_segment_tiles(a.hidden), pitch = tiles * k_tile + 8;
  __nv_bfloat16* const inputs = reinterpret_cast<__nv_bfloat16*>(shared);                              // (8, pitch)
  float4* const sums = reinterpret_cast<float4*>(shared + route_tokens * pitch * sizeof(__nv_bfloat16));  // (warps, 32)

  constexpr int seg_max = 8;
  uint4 ring[2][4];
  const std::uint32_t k_first = warp * seg, k_count = min(seg, tiles - k_first);
  const std::byte* const rows = a.weights.data + (std::uint64_t(part) * tiles + k_first) * tile_bytes(WeightFormat::bf16);
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (i < k_count) ring[i][s] = load_weights_16(rows + i * 2048 + s * 512 + lane * 16);
  trigger_next_kernel();
  wait_for_previous_kernel();

  for (std::uint32_t c = warp; c < route_tokens; c += warps) {
    const std::uint32_t t = first + min(c, count - 1);  // places beyond the last token repeat it; nobody looks at them
    const float4* x = reinterpret_cast<const float4*>(a.residual + std::uint64_t(t) * a.hidden);
    float squares = 0.0F;
    for (std::uint32_t i = lane; i < a.hidden / 4; i += 32) {
      const float4 v = x[i];
      squares = __fmaf_rn(v.x, v.x, squares), squares = __fmaf_rn(v.y, v.y, squares);
      squares = __fmaf_rn(v.z, v.z, squares), squares = __fmaf_rn(v.w, v.w, squares);
    }
    const float inverse = inverse_root(sum_of_warp(squares), a.hidden, a.epsilon);
    for (std::uint32_t i = lane; i < k_padded(a.hidden) / 4; i += 32) {
      uint2 packed = make_uint2(0, 0);
      if (i < a.hidden / 4) {
        const float4 v = x[i], w = reinterpret_cast<const float4*>(a.norm)[i];
        packed = make_uint2(pack_bf16(v.x * inverse * w.x, v.y * inverse * w.y), pack_bf16(v.z * inverse * w.z, v.w * inverse * w.w));
        if (part == 0 && c < count) *reinterpret_cast<uint2*>(a.normed + std::uint64_t(t) * a.stride + 4 * i) = packed;
      }
      *reinterpret_cast<uint2*>(inputs + c * pitch + 4 * i) = packed;
    }
  }
  __syncthreads();

  float chain[4] = {0.0F, 0.0F, 0.0F, 0.0F};
  const std::uint32_t column = shared_address(inputs + lane % 8 * pitch) + lane / 8 * 16 + k_first * k_tile * 2;
#pragma unroll
  for (int i = 0; i < seg_max; ++i) {
    if (i >= k_count) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t b[4];
      load_matrix_x4(b, column + i * k_tile * 2 + half * 64);
      const uint4 &w0 = ring[i % 2][2 * half], &w1 = ring[i % 2][2 * half + 1];
      const std::uint32_t a0[4] = {w0.x, w0.y, w0.z, w0.w}, a1[4] = {w1.x, w1.y, w1.z, w1.w};
      mma_bf16(chain, a0, b[0], b[1]);
      mma_bf16(chain, a1, b[2], b[3]);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (i + 2 < k_count) ring[i % 2][s] = load_weights_16(rows + (i + 2) * 2048 + s * 512 + lane * 16);
  }
  sums[warp * 32 + lane] = make_float4(chain[0], chain[1], chain[2], chain[3]);
  __syncthreads();
  if (warp == 0) {
    float4 sum = sums[lane];
    for (std::uint32_t s = 1; s < warps; ++s) {
      const float4 next = sums[s * 32 + lane];
      sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
    }
    float(*all)[128] = cluster.map_shared_rank(logits, 0);
    const std::uint32_t expert = part * row_tile + lane / 4, c = lane % 4 * 2;
    const auto put = [&](std::uint32_t e, std::uint32_t token, float value) {
      if (e >= a.weights.out || token >= count) return;
      if (a.bias != nullptr) value += a.bias[e];
      all[token][e] = value;
      if (a.logits != nullptr) a.logits[std::uint64_t(first + token) * a.weights.out + e] = value;
    };
    put(expert, c, sum.x), put(expert, c + 1, sum.y), put(expert + 8, c, sum.z), put(expert + 8, c + 1, sum.w);
  }
  cluster.sync();
  if (part != 0) return;
  for (std::uint32_t c = warp; c < count; c += warps) choose_experts(a, logits[c], first + c, a.tokens.rows[first + c] >= 0);
}

}  // namespace

cudaError_t begin_step(const BeginArgs& args, cudaStream_t stream) {
  return launch(begin_kernel, {dim3(args.tokens.count), dim3(norm_threads)}, stream, args);
}

cudaError_t combine_norm(const CombineNormArgs& args, cudaStream_t stream) {
  return launch(combine_norm_kernel, {dim3(args.tokens.count), dim3(norm_threads)}, stream, args);
}

cudaError_t norm_route(const NormRouteArgs& args, cudaStream_t stream) {
  const unsigned cluster = args.weights.row_tiles();
  const std::uint32_t warps = k_segments(args.hidden);
  const std::size_t shared = route_tokens * (k_padded(args.hidden) + 8) * sizeof(__nv_bfloat16) + std::size_t{warps} * 512;
  if (const cudaError_t error = allow_shared_memory(norm_route_kernel, shared); error != cudaSuccess) return error;
  return launch(norm_route_kernel, {dim3(cluster * ceil_div(args.tokens.count, route_tokens)), dim3(warps * 32), shared, cluster}, stream, args);
}

}  // namespace althing::gpu::cuda
