// The order of tokens and the race of scores, as the sampler's kernels share them. Scores are compared in double, ties go to the smaller id; both
// reductions are of a total order, so no result depends on how tokens are shared among threads.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/cuda/sampler.hpp"
#include "gpu/draw_key.hpp"

namespace althing::gpu::cuda {

inline constexpr unsigned whole_warp = 0xFFFFFFFFu;
inline constexpr std::uint32_t no_token = 0xFFFFFFFFu;

// Integers in the order of the floats; -0 and 0 are equal.
__device__ __forceinline__ std::uint32_t order_key(float logit) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0F));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

// A token's place in the one order of all filters: the more likely the larger, among equals the smaller id. No two tokens have the same.
__device__ __forceinline__ std::uint64_t place_of(float logit, std::uint32_t token) { return (std::uint64_t{order_key(logit)} << 32) | ~token; }
__device__ __forceinline__ std::uint32_t token_at(std::uint64_t place) { return ~static_cast<std::uint32_t>(place); }
__device__ __forceinline__ float logit_at(std::uint64_t place) { return logit_of(static_cast<std::uint32_t>(place >> 32)); }

struct Scored {
  double score;
  std::uint32_t token;
};
__device__ __forceinline__ Scored nothing_scored() { return {-INFINITY, no_token}; }
__device__ __forceinline__ bool beats(const Scored& a, const Scored& b) { return a.score > b.score || (a.score == b.score && a.token < b.token); }

// The same in every lane, unless a score is NaN (then the row is void).
__device__ __forceinline__ Scored warp_best(Scored mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Scored other{__shfl_xor_sync(whole_warp, mine.score, distance), __shfl_xor_sync(whole_warp, mine.token, distance)};
    if (beats(other, mine)) mine = other;
  }
  return mine;
}

struct Noise {
  std::uint64_t key;
  double temperature;
  float inverse_temperature;
};
__device__ __forceinline__ Noise noise_of(const SamplerRow& row) {
  return {draw_key(row.seed, row.choice, row.position), row.temperature, 1.0F / row.temperature};
}

// 2-logarithm by the special function unit, of normal numbers; absolute error below 2^-22 times (1 + its size).
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// Not below the score of a finite logit with these noise bits, for a tenth of the score's price: -log(-log u) is at most -log(1 - u), and the top
// half of the bits bounds 1 - u from below. The slack covers all rounding; where it might not, the answer is infinity.
__device__ __forceinline__ float score_bound(float logit, std::uint64_t bits, float inverse_temperature) {
  const float x = logit * inverse_temperature;
  const float rest = fmaxf(__uint2float_rd(~static_cast<std::uint32_t>(bits >> 32)), 0x1p-21F);  // (1 - u) 2^32, rounded down
  constexpr float ln_2 = 0.693147181F;
  const float bound = fmaf(-ln_2, log2_fast(rest), x) + fmaf(fabsf(x), 0x1p-20F, 32 * ln_2 + 1e-3F);
  return fabsf(x) < 1e30F ? bound : INFINITY;
}
__device__ __forceinline__ double exact_score(const Noise& noise, float logit, std::uint32_t token) {
  return __dadd_rn(static_cast<double>(logit) / noise.temperature, gumbel(noise_bits(noise.key, token)));
}

// The warp's best so far (the same in every lane) against N tokens a lane. bounds: not below their scores; -infinity: takes no part; spoiled. Only
// tokens whose bound reaches the best score are scored, usually a handful of a whole row.
template <int N>
__device__ __forceinline__ void contend(Scored& best, const Noise& noise, const float (&logits)[N], const std::uint32_t (&tokens)[N],
                                        float (&bounds)[N]) {
  float bar = __double2float_rd(best.score);
  while (true) {
    float top = -INFINITY, logit = 0;
    std::uint32_t token = no_token;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (bounds[i] > top) top = bounds[i], logit = logits[i], token = tokens[i];
    const bool stands = top > -INFINITY && top >= bar;
    if (!__any_sync(whole_warp, stands)) return;
    Scored mine = nothing_scored();
    if (stands) {
      mine = {exact_score(noise, logit, token), token};
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (tokens[i] == token) bounds[i] = -INFINITY;
    }
    __syncwarp();
    mine = warp_best(mine);
    if (beats(mine, best)) {
      best = mine;
      bar = __double2float_rd(best.score);
    }
  }
}

// How a row is drawn. Of one kept token that is the most likely one, whatever the noise.
__device__ __forceinline__ bool is_greedy(const SamplerRow& row) { return row.temperature == 0.0F || row.top_k == 1; }
__device__ __forceinline__ bool has_filters(const SamplerRow& row, std::uint32_t vocabulary) {
  return row.logprobs != 0 || (!is_greedy(row) && (row.top_p < 1.0F || row.min_p > 0.0F || (row.top_k != 0 && row.top_k < vocabulary)));
}

struct RowView {
  const float* logits;
  const std::uint32_t* allowed;
  std::uint32_t vocabulary;
  bool aligned;  // whole groups of four can be loaded at once
};
__device__ __forceinline__ RowView view_of(const SamplerArgs& args, std::uint32_t index) {
  return {args.logits + std::uint64_t{index} * args.vocabulary, args.rows[index].allowed, args.vocabulary,
          args.vocabulary % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.logits) % 16 == 0};
}
// Logits of `first`, a multiple of 4, and the three after it; 0 beyond the vocabulary.
__device__ __forceinline__ float4 load_four(const RowView& view, std::uint32_t first) {
  if (view.aligned) return first < view.vocabulary ? *reinterpret_cast<const float4*>(view.logits + first) : float4{0, 0, 0, 0};
  const auto one = [&](std::uint32_t token) { return token < view.vocabulary ? view.logits[token] : 0.0F; };
  return {one(first), one(first + 1), one(first + 2), one(first + 3)};
}
// A bit for each of the four that takes part.
__device__ __forceinline__ std::uint32_t live_four(const RowView& view, std::uint32_t first) {
  if (first >= view.vocabulary) return 0;
  const std::uint32_t inside = view.vocabulary - first >= 4 ? 0xFu : (1u << (view.vocabulary - first)) - 1;
  return view.allowed == nullptr ? inside : inside & (view.allowed[first / 32] >> (first % 32));
}

// By one thread. token: no_token when none is allowed.
__device__ __forceinline__ void publish(const SamplerArgs& args, std::uint32_t index, std::uint32_t token, bool nonfinite) {
  const bool failed = nonfinite || token == no_token;
  const std::int32_t drawn = failed ? 0 : static_cast<std::int32_t>(token);
  args.drawn[index] = {drawn, failed ? 1 : 0};
  if (args.last_token != nullptr) args.last_token[args.rows[index].row] = drawn;
}

}  // namespace althing::gpu::cuda
