// Attention against a naive softmax in double precision: windows, sinks, shared KV heads, positions around segment and page borders; and equal
// bits whatever pages hold the context and whatever stood in them before.
#include "gpu/cpu/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace althing::gpu::cpu {
namespace {

constexpr std::uint32_t tokens_per_page = 24;  // neither divides a segment nor is divided by one

struct Context {
  std::uint32_t length, kv_heads, heads, head_dim;
  std::vector<float> keys, values;  // (length, kv_heads, head_dim)
  std::vector<float> queries;       // (kv_heads * heads, head_dim)
  std::vector<float> sinks;
  KvCache cache;
  std::vector<PageId> pages;
};

Context make_context(std::uint32_t length, std::uint32_t kv_heads, std::uint32_t heads, std::uint32_t head_dim, std::uint32_t page_seed) {
  KvLayout layout;
  layout.page_bytes = std::uint64_t{2} * tokens_per_page * kv_heads * head_dim * 2 * 4;
  layout.page_count = 3 * ((length + tokens_per_page - 1) / tokens_per_page) + 1;
  layout.groups = {{0, tokens_per_page, {0, 1}}};
  Context c{length, kv_heads, heads, head_dim, {}, {}, {}, {}, KvCache::create(layout, {kv_heads, head_dim}, 2).value(), {}};
  std::mt19937 random(length * 31 + heads);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const auto fill = [&](std::vector<float>& to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(normal(random));
  };
  fill(c.keys, std::size_t{length} * kv_heads * head_dim);
  fill(c.values, c.keys.size());
  fill(c.queries, std::size_t{kv_heads} * heads * head_dim);
  fill(c.sinks, std::size_t{kv_heads} * heads);
  for (std::uint32_t p = 0; p < layout.page_count; ++p) c.pages.push_back(PageId{p});
  std::shuffle(c.pages.begin(), c.pages.end(), std::mt19937(page_seed));
  // Stale values of earlier owners, NaN among them, must not be looked at.
  for (std::uint32_t p = 0; p < layout.page_count; ++p)
    for (std::size_t i = 0; i < layout.page_bytes / 4 / kv_heads / 2; ++i) c.cache.keys(c.cache.place(1), PageId{p}, 0)[i] = i % 3 ? NAN : 1e30F;
  for (std::uint32_t position = 0; position < length; ++position)
    for (std::uint32_t h = 0; h < kv_heads; ++h) {
      const std::size_t at = (std::size_t{position} * kv_heads + h) * head_dim;
      append({c.cache, 1, h, c.pages, position, head_dim, c.keys.data() + at, c.values.data() + at});
    }
  return c;
}

std::vector<float> run(const Context& c, std::uint32_t position, std::uint32_t window, bool sinks) {
  std::vector<float> attended(c.queries.size());
  for (std::uint32_t h = 0; h < c.kv_heads; ++h) {
    const std::size_t first = std::size_t{h} * c.heads;
    attend({c.cache, 1, h, c.pages, position, window, c.head_dim, c.heads, c.queries.data() + first * c.head_dim,
            sinks ? c.sinks.data() + first : nullptr, attended.data() + first * c.head_dim});
  }
  return attended;
}

std::vector<double> naive(const Context& c, std::uint32_t position, std::uint32_t window, bool sinks) {
  std::vector<double> result(c.queries.size());
  for (std::size_t head = 0; head < std::size_t{c.kv_heads} * c.heads; ++head) {
    const auto at = [&](std::uint32_t p) { return (std::size_t{p} * c.kv_heads + head / c.heads) * c.head_dim; };
    std::vector<double> scores;
    double sum = sinks ? std::exp(double{c.sinks[head]}) : 0.0;
    const std::uint32_t first = window == 0 || position < window ? 0 : position - window + 1;
    for (std::uint32_t p = first; p <= position; ++p) {
      double score = 0;
      for (std::uint32_t d = 0; d < c.head_dim; ++d) score += double{c.queries[head * c.head_dim + d]} * double{c.keys[at(p) + d]};
      scores.push_back(std::exp(score / std::sqrt(double{c.head_dim * 1.0})));
      sum += scores.back();
    }
    for (std::uint32_t p = first; p <= position; ++p)
      for (std::uint32_t d = 0; d < c.head_dim; ++d) result[head * c.head_dim + d] += scores[p - first] / sum * double{c.values[at(p) + d]};
  }
  return result;
}

void expect_close(const std::vector<float>& ours, const std::vector<double>& theirs, const std::string& what) {
  for (std::size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 3e-6) << what << ", element " << i;
}

TEST(Attention, agrees_with_naive_softmax) {
  struct Heads {
    std::uint32_t kv_heads, heads, head_dim;
  };
  for (const Heads h : {Heads{2, 4, 64}, Heads{1, 8, 64}, Heads{3, 1, 16}, Heads{1, 5, 72}, Heads{2, 2, 128}}) {
    const Context c = make_context(200, h.kv_heads, h.heads, h.head_dim, 1);
    for (const std::uint32_t position : {0u, 1u, 7u, 8u, 23u, 24u, 63u, 64u, 65u, 127u, 128u, 199u})
      for (const std::uint32_t window : {0u, 1u, 8u, 64u, 100u, 128u})
        for (const bool sinks : {false, true})
          expect_close(run(c, position, window, sinks), naive(c, position, window, sinks),
                       "position " + std::to_string(position) + ", window " + std::to_string(window) + (sinks ? ", sinks" : ""));
  }
}

TEST(Attention, large_scores_do_not_overflow) {
  Context c = make_context(150, 1, 4, 64, 1);
  for (float& q : c.queries) q *= 40.0F;
  const auto result = run(c, 149, 0, true);
  for (const float value : result) ASSERT_TRUE(std::isfinite(value));
}

TEST(Attention, a_nan_key_reaches_the_result) {
  Context c = make_context(90, 1, 4, 64, 1);
  std::vector<float> key(64, NAN), value(64, 1.0F);
  append({c.cache, 1, 0, c.pages, 70, 64, key.data(), value.data()});
  for (const float x : run(c, 89, 0, true)) ASSERT_TRUE(std::isnan(x));
  for (const float x : run(c, 69, 0, true)) ASSERT_FALSE(std::isnan(x));   // it lies in the future
  for (const float x : run(c, 89, 19, true)) ASSERT_FALSE(std::isnan(x));  // it slid out of the window
}

TEST(Attention, pages_do_not_change_bits) {
  const Context a = make_context(200, 2, 4, 64, 1), b = make_context(200, 2, 4, 64, 2);
  ASSERT_NE(a.pages, b.pages);
  for (const std::uint32_t position : {5u, 64u, 130u, 199u})
    for (const std::uint32_t window : {0u, 20u}) ASSERT_EQ(run(a, position, window, true), run(b, position, window, true)) << position;
}

}  // namespace
}  // namespace althing::gpu::cpu
