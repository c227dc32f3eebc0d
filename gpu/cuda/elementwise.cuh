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

// One half of a pair, twice.
__device__ __forceinline__ std::uint32_t low_twice(std::uint32_t pair) {
  const __nv_bfloat162 both = __low2bfloat162(reinterpret_cast<const __nv_bfloat162&>(pair));
  return reinterpret_cast<const std::uint32_t&>(both);
}
__device__ __forceinline__ std::uint32_t high_twice(std::uint32_t pair) {
  const __nv_bfloat162 both = __high2bfloat162(reinterpret_cast<const __nv_bfloat162&>(pair));
  return reinterpret_cast<const std::uint32_t&>(both);
}

// Bits of `a` where `mask` has ones, else of `b`: one instruction, which the compiler would take apart when it knows what masks follow.
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) {
  std::uint32_t selected;
  asm("lop3.b32 %0,%1,%2,%3,0xE4;" : "=r"(selected) : "r"(a), "r"(b), "r"(mask));
  return selected;
}

// Operand A of an even or odd step from the packed mxfp4 words of both (packed_matrix.hpp). factors: of row g in the low half, of row g + 8 in the
// high half. Exact. One shift and one mask a register; what the two steps share is computed once when both are expanded.
__device__ __forceinline__ void expand_mxfp4(std::uint32_t even, std::uint32_t odd, int step, std::uint32_t factors, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t mask = 0x81C081C0u, from_even = 0x180C180Cu;
  const std::uint32_t word = step == 0 ? even : odd, shared = select_bits(even << 2, odd, from_even);
  a[0] = multiply_bf16x2(word & mask, low_twice(factors));
  a[1] = multiply_bf16x2((word << 4) & mask, high_twice(factors));
  a[2] = multiply_bf16x2(__funnelshift_l(word, word, 10) & mask, low_twice(factors));
  a[3] = multiply_bf16x2((step == 0 ? shared << 6 : __funnelshift_l(shared, shared, 12)) & mask, high_twice(factors));
}
// The factors of one half (k < 32, k >= 32) of a tile from its packed exponents.
__device__ __forceinline__ std::uint32_t mxfp4_factors(std::uint32_t exponents, int half) {
  return (half == 0 ? exponents : __byte_perm(exponents, 0, 0x2103)) & 0x7F807F80u;
}

// Two E4M3 values (low byte first) times a factor in both halves. Exact when the factor is a power of two that keeps them in range.
__device__ __forceinline__ std::uint32_t expand_fp8(std::uint32_t pair, std::uint32_t factor) {
  const std::uint32_t spread = __byte_perm(pair, 0, 0x1404);  // bytes: 0, low, 0, high
  const std::uint32_t bits = (spread & 0x80008000u) | ((spread >> 4) & 0x07F007F0u);
  return multiply_bf16x2(bits, factor);
}

}  // namespace althing::gpu::cuda
