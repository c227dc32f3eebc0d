// The noise of a draw, for host and device alike: one definition, so that a stream drawn on one backend replays on the other.
// Everything up to `gumbel` is integer or exact; gumbel takes two logarithms, which libraries round differently in the last bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "scheduler/vocabulary/ids.hpp"

#ifdef __CUDACC__
#define ALTHING_HOST_DEVICE __host__ __device__
#else
#define ALTHING_HOST_DEVICE
#endif

namespace althing::gpu {

// The finalizer of SplitMix64: a bijection whose outputs over a counter pass the usual test batteries.
ALTHING_HOST_DEVICE constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
// A token's counter is key + noise_step * (token + 1).
inline constexpr std::uint64_t noise_step = 0x9e3779b97f4a7c15u;

// The key of one draw; 64 well-mixed bits a token. Changing these functions changes every sampled stream: a test pins their values.
ALTHING_HOST_DEVICE constexpr std::uint64_t draw_key(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  return mix_bits(mix_bits(seed + noise_step) ^ ((std::uint64_t{choice} << 32) | position));
}
ALTHING_HOST_DEVICE constexpr std::uint64_t noise_bits(std::uint64_t key, TokenId token) {
  return mix_bits(key + noise_step * (std::uint64_t{token} + 1));
}

// Standard Gumbel noise, -log(-log u) with u in (0, 1) from the upper 52 bits; finite for all bits.
ALTHING_HOST_DEVICE inline double gumbel(std::uint64_t bits) {
  const double uniform = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;  // 52 bits: with 53 the largest would round to 1
  return -std::log(-std::log(uniform));
}

}  // namespace althing::gpu
