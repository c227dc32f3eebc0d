// One packed tile (packed_matrix.hpp) in a warp's registers, and operand A of each of its four k16 steps, expanded exactly to bf16.
#pragma once

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

__device__ __forceinline__ uint4 load_shared_16(const std::byte* address) { return *reinterpret_cast<const uint4*>(address); }

template <WeightFormat Format>
struct WeightTile;

template <>
struct WeightTile<WeightFormat::bf16> {
  uint4 step[4];
  __device__ __forceinline__ void load_shared(const std::byte* tile, std::uint32_t lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) step[s] = load_shared_16(tile + 512 * s + 16 * lane);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    a[0] = step[s].x, a[1] = step[s].y, a[2] = step[s].z, a[3] = step[s].w;
  }
};

template <>
struct WeightTile<WeightFormat::fp8> {
  uint4 half[2];
  std::uint32_t factor;  // in both halves
  __device__ __forceinline__ void load_shared(const std::byte* tile, std::uint32_t lane) {
    half[0] = load_shared_16(tile + 16 * lane);
    half[1] = load_shared_16(tile + 512 + 16 * lane);
    factor = *reinterpret_cast<const std::uint16_t*>(tile + 1024) * 0x00010001u;
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s % 2 == 0 ? half[s / 2].x : half[s / 2].z, second = s % 2 == 0 ? half[s / 2].y : half[s / 2].w;
    a[0] = expand_fp8(first & 0xFFFFu, factor), a[1] = expand_fp8(first >> 16, factor);
    a[2] = expand_fp8(second & 0xFFFFu, factor), a[3] = expand_fp8(second >> 16, factor);
  }
};

template <>
struct WeightTile<WeightFormat::mxfp4> {
  uint4 words;
  std::uint32_t exponents;
  __device__ __forceinline__ void load_shared(const std::byte* tile, std::uint32_t lane) {
    words = load_shared_16(tile + 16 * lane);
    exponents = *reinterpret_cast<const std::uint32_t*>(tile + 512 + 4 * (lane / 4));
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    expand_mxfp4(s < 2 ? words.x : words.z, s < 2 ? words.y : words.w, s % 2, mxfp4_factors(exponents, s / 2), a);
  }
};

}  // namespace althing::gpu::cuda
