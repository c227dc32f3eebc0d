// See the header for the orders of additions, which are the contract; how many heads share a load of keys is not part of it.
#include "gpu/cpu/attention.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/cpu/elementwise.hpp"

namespace althing::gpu::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t lanes = 8;

struct Segment {
  std::uint32_t base;   // a multiple of kv_segment
  std::uint32_t begin;  // visible positions [begin, end)
  std::uint32_t end;
};

// scores[h][i] of position base + i for H heads; positions outside [begin, end) get -inf.
template <int H>
void score(const AttentionArgs& a, const KvCache::LayerPlace& place, const Segment& s, const float* queries, float scale,
           float (*scores)[kv_segment]) {
  const std::uint32_t tokens = place.tokens_per_page;
  for (int h = 0; h < H; ++h) std::fill_n(scores[h], kv_segment, minus_infinity);
  for (std::uint32_t at = s.begin / lanes * lanes; at < s.end; at += lanes) {
    const float* keys = a.cache.keys(place, a.pages[at / tokens], a.kv_head) + at % tokens;
    __m256 sums[H];
    for (int h = 0; h < H; ++h) sums[h] = _mm256_setzero_ps();
    for (std::uint32_t d = 0; d < a.head_dim; ++d) {
      const __m256 key = _mm256_loadu_ps(keys + std::size_t{d} * tokens);
      for (int h = 0; h < H; ++h)
        sums[h] = _mm256_fmadd_ps(_mm256_broadcast_ss(queries + static_cast<std::size_t>(h) * a.head_dim + d), key, sums[h]);
    }
    for (int h = 0; h < H; ++h) {
      float eight[lanes];
      _mm256_storeu_ps(eight, _mm256_mul_ps(sums[h], _mm256_set1_ps(scale)));
      // Lanes outside the segment hold what the page held before: never looked at.
      const std::uint32_t first = std::max(at, s.begin), last = std::min(at + lanes, s.end);
      for (std::uint32_t p = first; p < last; ++p) scores[h][p - s.base] = eight[p - at];
    }
  }
}

// o[0..8*V) += sum over positions of weight * value, one chain a dimension.
template <int V>
void add_values(const AttentionArgs& a, const KvCache::LayerPlace& place, const Segment& s, const float* weights, std::uint32_t first, float* o) {
  const std::uint32_t tokens = place.tokens_per_page;
  __m256 sums[V];
  for (int v = 0; v < V; ++v) sums[v] = _mm256_setzero_ps();
  std::uint32_t p = s.begin;
  while (p < s.end) {
    const std::uint32_t run = std::min(s.end, (p / tokens + 1) * tokens);
    const float* values = a.cache.values(place, a.pages[p / tokens], a.kv_head) + std::size_t{p % tokens} * a.head_dim + first;
    for (; p < run; ++p, values += a.head_dim) {
      const __m256 weight = _mm256_broadcast_ss(weights + (p - s.base));
      for (int v = 0; v < V; ++v) sums[v] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(values + v * 8), sums[v]);
    }
  }
  for (int v = 0; v < V; ++v) _mm256_storeu_ps(o + first + v * 8, sums[v]);
}

// Turns scores into weights in place; returns their sum.
float exponentiate(const Segment& s, float maximum, float* scores) {
  float sums[lanes] = {};
  const std::uint32_t begin = s.begin / lanes * lanes - s.base;
  const std::uint32_t end = std::min(kv_segment, (s.end - s.base + lanes - 1) / lanes * lanes);
  for (std::uint32_t i = begin; i < end; i += lanes)
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      scores[i + lane] = exp_f32(scores[i + lane] - maximum);
      sums[lane] += scores[i + lane];
    }
  float sum = 0.0F;
  for (const float part : sums) sum += part;
  return sum;
}

// The running result of one head.
struct Running {
  float maximum = minus_infinity;
  float sum = 0.0F;
};

// running = running merged with the segment (maximum, sum, o).
void merge(Running& running, float* total, float maximum, float sum, const float* o, std::uint32_t head_dim, bool first) {
  if (first) {
    running = {maximum, sum};
    std::copy_n(o, head_dim, total);
    return;
  }
  const float both = running.maximum > maximum ? running.maximum : maximum;
  const float keep = exp_f32(running.maximum - both), add = exp_f32(maximum - both);
  running = {both, running.sum * keep + sum * add};
  for (std::uint32_t d = 0; d < head_dim; ++d) total[d] = total[d] * keep + o[d] * add;
}

void finish(const Running& running, const float* sink, std::uint32_t head_dim, float* total) {
  float keep = 1.0F, sum = running.sum;
  if (sink != nullptr) {
    const float both = running.maximum > *sink ? running.maximum : *sink;
    keep = exp_f32(running.maximum - both);
    sum = running.sum * keep + exp_f32(*sink - both);
  }
  const float factor = keep / sum;
  for (std::uint32_t d = 0; d < head_dim; ++d) total[d] *= factor;
}

template <int H>
void attend_heads(const AttentionArgs& a, std::uint32_t first_head) {
  const KvCache::LayerPlace& place = a.cache.place(a.layer);
  const float* queries = a.queries + std::size_t{first_head} * a.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  const std::uint32_t from = a.window == 0 || a.position < a.window ? 0 : a.position - a.window + 1;
  alignas(32) float scores[H][kv_segment];
  alignas(32) float o[1024];
  Running running[H];
  for (std::uint32_t base = from / kv_segment * kv_segment; base <= a.position; base += kv_segment) {
    const Segment s{base, std::max(from, base), std::min(a.position + 1, base + kv_segment)};
    score<H>(a, place, s, queries, scale, scores);
    for (int h = 0; h < H; ++h) {
      float maximum = minus_infinity;
      for (const float value : scores[h]) maximum = value > maximum ? value : maximum;
      const float sum = exponentiate(s, maximum, scores[h]);
      std::uint32_t d = 0;
      for (; d + 64 <= a.head_dim; d += 64) add_values<8>(a, place, s, scores[h], d, o);
      for (; d < a.head_dim; d += 8) add_values<1>(a, place, s, scores[h], d, o);
      float* total = a.attended + (first_head + static_cast<std::size_t>(h)) * a.head_dim;
      merge(running[h], total, maximum, sum, o, a.head_dim, s.begin == from);
    }
  }
  for (std::uint32_t h = 0; h < H; ++h)
    finish(running[h], a.sinks == nullptr ? nullptr : a.sinks + first_head + h, a.head_dim, a.attended + std::size_t{first_head + h} * a.head_dim);
}

}  // namespace

void attend(const AttentionArgs& a) {
  std::uint32_t head = 0;
  for (; head + 4 <= a.heads; head += 4) attend_heads<4>(a, head);
  for (; head < a.heads; ++head) attend_heads<1>(a, head);
}

void append(const AppendArgs& a) {
  const KvCache::LayerPlace& place = a.cache.place(a.layer);
  const PageId page = a.pages[a.position / place.tokens_per_page];
  const std::uint32_t slot = a.position % place.tokens_per_page;
  float* keys = a.cache.keys(place, page, a.kv_head) + slot;
  for (std::uint32_t d = 0; d < a.head_dim; ++d) keys[std::size_t{d} * place.tokens_per_page] = a.key[d];
  std::copy_n(a.value, a.head_dim, a.cache.values(place, page, a.kv_head) + std::size_t{slot} * a.head_dim);
}

}  // namespace althing::gpu::cpu
