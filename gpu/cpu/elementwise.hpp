// All element-wise math of the CPU backend. One definition each, so that prefill, decode and every op that fuses them give the same bits; written
// without branches on data so that the compiler can vectorise the loops that call them. NaN in gives NaN out: a broken
// logit must surface, never be clamped into a plausible number.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace althing::gpu::cpu {

// exp(x) to 2 ulp for x in [-87, 88]; 0 below, exp(88) above (callers pass softmax arguments, which are at most 0, or clamp by themselves).
inline float exp_f32(float x) {
  constexpr float low = -87.0F, high = 88.0F;
  constexpr float rounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  float clamped = x > high ? high : x;
  clamped = clamped < low ? low : clamped;
  const float shifted = std::fma(clamped, 1.44269504F, rounder);
  const float n = shifted - rounder;
  // x - n ln 2 in two steps: the first product is exact.
  float r = std::fma(n, -0.693359375F, clamped);
  r = std::fma(n, 2.12194440e-4F, r);
  // Taylor to the 7th power: for |r| <= ln(2)/2 the rest is 5e-9.
  float p = std::fma(1.0F / 5040.0F, r, 1.0F / 720.0F);
  p = std::fma(p, r, 1.0F / 120.0F);
  p = std::fma(p, r, 1.0F / 24.0F);
  p = std::fma(p, r, 1.0F / 6.0F);
  p = std::fma(p, r, 0.5F);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(rounder);
  const float scale = std::bit_cast<float>((exponent + 127u) << 23);
  return x < low ? 0.0F : p * scale;
}

inline float sigmoid(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

// gate is cut above, up on both sides; comparisons are written so that NaN passes through.
inline float swiglu(float gate, float up, float limit, float alpha) {
  const float g = gate > limit ? limit : gate;
  float u = up > limit ? limit : up;
  u = u < -limit ? -limit : u;
  return g * sigmoid(alpha * g) * (u + 1.0F);
}

// normed[i] = x[i] * rsqrt(mean(x^2) + epsilon) * weight[i]. The sum of squares runs in 8 lanes (i mod 8), added in lane order.
inline void rms_norm(const float* x, const float* weight, float epsilon, std::size_t size, float* normed) {
  float lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8)
    for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] = std::fma(x[i + lane], x[i + lane], lanes[lane]);
  for (; i < size; ++i) lanes[i % 8] = std::fma(x[i], x[i], lanes[i % 8]);
  float sum = 0.0F;
  for (const float lane : lanes) sum += lane;
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(size) + epsilon);
  for (std::size_t j = 0; j < size; ++j) normed[j] = x[j] * inverse * weight[j];
}

// Rotates one head in place; pairs are (j, j + half). cosine and sine hold `half` values each.
inline void rotate(float* head, const float* cosine, const float* sine, std::size_t half) {
  for (std::size_t j = 0; j < half; ++j) {
    const float a = head[j], b = head[j + half];
    head[j] = a * cosine[j] - b * sine[j];
    head[j + half] = b * cosine[j] + a * sine[j];
  }
}

}  // namespace althing::gpu::cpu
