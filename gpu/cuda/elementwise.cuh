// Element-wise math of the CUDA backend: one definition each, so that every kernel that fuses it gives the same bits. NaN in gives NaN out.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace althing::gpu::cuda {

inline constexpr float log2_e = 1.44269504F;

// 2^x by the special function unit; relative error about 2^-22, exact 0 for -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// The gate is cut above, up on both sides; comparisons are written so that NaN passes through.
__device__ __forceinline__ float swiglu(float gate, float up, float limit, float alpha) {
  const float g = gate > limit ? limit : gate;
  float u = up > limit ? limit : up;
  u = u < -limit ? -limit : u;
  const float sigmoid = __fdividef(1.0F, 1.0F + exp2_fast(-alpha * log2_e * g));
  return g * sigmoid * (u + 1.0F);
}

// Both sides of a rotation.
__device__ __forceinline__ float2 rotate(float a, float b, float cosine, float sine) {
  return make_float2(__fmul_rn(a, cosine) - __fmul_rn(b, sine), __fmul_rn(b, cosine) + __fmul_rn(a, sine));
}

__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(product);
}

// A step's operand A from a packed mxfp4 word (packed_matrix.hpp). low, high: factors of rows g and g + 8, both halves alike. Exact.
__device__ __forceinline__ void expand_mxfp4(std::uint32_t word, std::uint32_t low, std::uint32_t high, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t mask = 0x81C081C0u;
  a[0] = multiply_bf16x2(word & mask, low);
  a[1] = multiply_bf16x2((word << 3) & mask, high);
  a[2] = multiply_bf16x2((word << 6) & mask, low);
  a[3] = multiply_bf16x2(((word << 1) & 0x80008000u) | ((word >> 5) & 0x01000100u) | ((word >> 4) & 0x00C000C0u), high);
}
// A stored exponent byte as a factor in both halves.
__device__ __forceinline__ std::uint32_t mxfp4_factor(std::uint32_t exponents, int byte) { return ((exponents >> (8 * byte)) & 0xFFu) * 0x00800080u; }

// Two E4M3 values (low byte first) times a factor in both halves. Exact when the factor is a power of two that keeps them in range.
__device__ __forceinline__ std::uint32_t expand_fp8(std::uint32_t pair, std::uint32_t factor) {
  const std::uint32_t spread = __byte_perm(pair, 0, 0x1404);  // bytes: 0, low, 0, high
  const std::uint32_t bits = (spread & 0x80008000u) | ((spread >> 4) & 0x07F007F0u);
  return multiply_bf16x2(bits, factor);
}

}  // namespace althing::gpu::cuda
