// Sums of squares and the choice of experts, in the one order that every kernel keeps which norms a token or routes it. Squares are added in one of
// two orders. By a block of norm_threads: a thread's elements threadIdx.x + i * norm_threads ascending in one chain, then lanes by xor 16, 8, 4, 2,
// 1, then warps ascending. By a warp: a lane's groups of four, lane + 32 i, ascending in one chain, then the same tree over lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/ops/fixed_point.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t norm_threads = 512;

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, mask);
  return value;
}

// The warps' sums meet in `parts`; after a barrier of all norm_threads every thread can add them.
__device__ __forceinline__ void leave_part(float value, float (&parts)[norm_threads / 32]) {
  value = sum_of_warp(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
}
__device__ __forceinline__ float sum_of_parts(const float (&parts)[norm_threads / 32]) {
  float sum = 0.0F;
#pragma unroll
  for (std::uint32_t w = 0; w < norm_threads / 32; ++w) sum += parts[w];
  return sum;
}

// One group of four of a lane's chain.
__device__ __forceinline__ float add_squares(float squares, float4 v) {
  squares = __fmaf_rn(v.x, v.x, squares), squares = __fmaf_rn(v.y, v.y, squares);
  return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, squares));
}

__device__ __forceinline__ float inverse_root(float squares, std::uint32_t hidden, float epsilon) {
  return __frsqrt_rn(__fdiv_rn(squares, static_cast<float>(hidden)) + epsilon);
}

// An expert's output times its weight, as fixed point (ops/fixed_point.hpp). Exact until the rounding: two floats multiply without one in double.
struct FixedPointAddend {
  long long value;
  bool fits;
};
__device__ __forceinline__ FixedPointAddend fixed_point_addend(float weight, float output) {
  const double value = static_cast<double>(weight) * static_cast<double>(output);
  const bool fits = fabs(value) < fixed_point_limit;  // false for NaN
  return {fits ? __double2ll_rn(value * 0x1p36) : 0, fits};
}

// Orders as floats do, as an integer that is never 0; NaN comes before all numbers, so that it never wins against one.
__device__ __forceinline__ std::uint32_t sortable(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if (isnan(value)) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// By one warp: the k (up to 32) largest of up to 128 logits, the smaller id among equals, with softmax over them. Lane c < k gets the c-th.
struct ExpertChoice {
  std::int32_t expert;
  float weight;
};
__device__ __forceinline__ ExpertChoice choose_experts(const float* logits, std::uint32_t experts, std::uint32_t k) {
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t keys[4];  // of experts lane, lane + 32, …; 0: chosen, or no expert
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) keys[i] = lane + 32 * i < experts ? sortable(logits[lane + 32 * i]) : 0;
  float first = 0.0F, sum = 0.0F;
  ExpertChoice own{-1, 0.0F};
  for (std::uint32_t c = 0; c < k; ++c) {
    const std::uint32_t best = __reduce_max_sync(0xFFFFFFFFu, max(max(keys[0], keys[1]), max(keys[2], keys[3])));
    // The smallest id of those that have it: rounds of 32 ascending, lanes ascending.
    std::uint32_t at = 0;
    bool found = false;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const unsigned have = __ballot_sync(0xFFFFFFFFu, keys[i] == best);
      if (found || have == 0) continue;
      found = true;
      at = 32 * i + __ffs(static_cast<int>(have)) - 1;
      if (at % 32 == lane) keys[i] = 0;
    }
    const float logit = logits[at];
    if (c == 0) first = logit;
    const float weight = exp2_fast((logit - first) * log2_e);
    sum += weight;
    if (lane == c) own = {static_cast<std::int32_t>(at), weight};
  }
  own.weight = __fdiv_rn(own.weight, sum);
  return own;
}

}  // namespace althing::gpu::cuda
