// What a lane of the decode linear layers requests from memory at a time, many units ahead of its use: a tile of mxfp4, half a tile of the others.
// A unit is overwritten in place by the request for a later one; where that one does not exist nothing is read.
#pragma once

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

// Leave the registers alone unless `exists`, without a branch.
__device__ __forceinline__ void load_weights_16_if(uint4& v, const std::byte* address, bool exists) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p,%5,0;\n@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3},[%4];\n}\n"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(static_cast<std::uint32_t>(exists)));
}
__device__ __forceinline__ void load_weights_4_if(std::uint32_t& v, const std::byte* address, bool exists) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.L1::no_allocate.u32 %0,[%1];\n}\n"
               : "+r"(v)
               : "l"(address), "r"(static_cast<std::uint32_t>(exists)));
}

// A lane's part of unit u of a run of tiles: `words` is where the run begins, 16 lane further; `factors` comes from there.
template <WeightFormat Format>
struct StreamUnit;

template <>
struct StreamUnit<WeightFormat::bf16> {
  static constexpr int per_tile = 2, steps = 2;  // steps: of k16, in one unit
  uint4 step[2];
  __device__ __forceinline__ static const std::byte* factors(const std::byte* words, std::uint32_t) { return words; }
  __device__ __forceinline__ void load(const std::byte* from, const std::byte*, int u, bool exists) {
    load_weights_16_if(step[0], from + 1024 * u, exists);
    load_weights_16_if(step[1], from + 1024 * u + 512, exists);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const { a[0] = step[s].x, a[1] = step[s].y, a[2] = step[s].z, a[3] = step[s].w; }
};

template <>
struct StreamUnit<WeightFormat::fp8> {
  static constexpr int per_tile = 2, steps = 2;
  uint4 words;
  std::uint32_t factor;
  __device__ __forceinline__ static const std::byte* factors(const std::byte* words, std::uint32_t lane) { return words + (1024 - 16 * static_cast<int>(lane)); }
  __device__ __forceinline__ void load(const std::byte* from, const std::byte* factors, int u, bool exists) {
    load_weights_16_if(words, from + 1056 * (u / 2) + 512 * (u % 2), exists);
    load_weights_4_if(factor, factors + 1056 * (u / 2), exists);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s == 0 ? words.x : words.z, second = s == 0 ? words.y : words.w, both = __byte_perm(factor, 0, 0x1010);
    a[0] = expand_fp8(first & 0xFFFFu, both), a[1] = expand_fp8(first >> 16, both);
    a[2] = expand_fp8(second & 0xFFFFu, both), a[3] = expand_fp8(second >> 16, both);
  }
};

template <>
struct StreamUnit<WeightFormat::mxfp4> {
  static constexpr int per_tile = 1, steps = 4;
  uint4 words;
  std::uint32_t exponents;
  __device__ __forceinline__ static const std::byte* factors(const std::byte* words, std::uint32_t lane) {
    return words + (512 - 16 * static_cast<int>(lane) + static_cast<int>(lane / 4 * 4));
  }
  __device__ __forceinline__ void load(const std::byte* from, const std::byte* factors, int u, bool exists) {
    load_weights_16_if(words, from + 544 * u, exists);
    load_weights_4_if(exponents, factors + 544 * u, exists);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    expand_mxfp4(s < 2 ? words.x : words.z, s < 2 ? words.y : words.w, s % 2, mxfp4_factors(exponents, s / 2), a);
  }
};

}  // namespace althing::gpu::cuda
