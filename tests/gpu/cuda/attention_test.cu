// Paged attention against softmax in double, and the promise that bits do not depend on splits, tiles, pages, or on which of the two kernels ran.
// What no token may look at is poisoned: positions of pages that were never written are NaN, table entries of pages that slid out of a window are
// wild.
#include "gpu/cuda/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/gpu/cuda/device_array.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

constexpr std::uint32_t dim = attention_head_dim;
constexpr std::uint16_t bf16_nan = 0xFFFF;

struct Heads {
  std::uint32_t query;
  std::uint32_t kv;
};
struct Layout {
  std::uint32_t tokens_per_page = 16;
  std::uint32_t seed = 1;  // of the page order
};
struct Token {
  std::int32_t row;
  std::int32_t position;
};

// What is computed, apart from where things lie.
struct Problem {
  Heads heads{};
  std::uint32_t window = 0;
  std::vector<float> sinks;                      // (query) or empty
  std::vector<std::uint32_t> lengths;            // positions written of each row
  std::vector<std::vector<std::uint16_t>> keys;  // of each row: (length, kv heads, dim)
  std::vector<std::vector<std::uint16_t>> values;
  std::vector<Token> tokens;
  std::vector<std::uint16_t> queries;  // (tokens, query heads, dim)
};

Problem random_problem(Heads heads, std::uint32_t window, bool sinks, const std::vector<std::uint32_t>& lengths, const std::vector<Token>& tokens,
                       std::uint32_t seed) {
  std::mt19937 random(seed);
  Problem p{heads, window, {}, lengths, {}, {}, tokens, {}};
  std::normal_distribution<float> normal;
  if (sinks)
    for (std::uint32_t h = 0; h < heads.query; ++h) p.sinks.push_back(2 * normal(random));
  for (const std::uint32_t length : lengths) {
    p.keys.push_back(random_bf16(std::size_t{length} * heads.kv * dim, random));
    p.values.push_back(random_bf16(std::size_t{length} * heads.kv * dim, random));
  }
  p.queries = random_bf16(tokens.size() * heads.query * dim, random, 2.0F);
  return p;
}

std::vector<double> oracle(const Problem& p, std::size_t t, std::uint32_t head) {
  const Token token = p.tokens[t];
  const std::uint32_t kv_head = head / (p.heads.query / p.heads.kv);
  const auto last = static_cast<std::uint32_t>(token.position);
  const std::uint32_t first = p.window == 0 || last < p.window ? 0 : last - p.window + 1;
  const std::uint16_t* query = p.queries.data() + (t * p.heads.query + head) * dim;
  std::vector<double> scores;
  for (std::uint32_t at = first; at <= last; ++at) {
    double sum = 0;
    for (std::uint32_t d = 0; d < dim; ++d)
      sum += double{bf16_value(query[d])} * bf16_value(p.keys[token.row][(std::size_t{at} * p.heads.kv + kv_head) * dim + d]);
    scores.push_back(sum / 8);
  }
  double maximum = *std::max_element(scores.begin(), scores.end());
  if (!p.sinks.empty()) maximum = std::max(maximum, double{p.sinks[head]});
  double total = p.sinks.empty() ? 0 : std::exp(p.sinks[head] - maximum);
  std::vector<double> o(dim, 0);
  for (std::uint32_t at = first; at <= last; ++at) {
    const double weight = std::exp(scores[at - first] - maximum);
    total += weight;
    for (std::uint32_t d = 0; d < dim; ++d) o[d] += weight * bf16_value(p.values[token.row][(std::size_t{at} * p.heads.kv + kv_head) * dim + d]);
  }
  for (double& value : o) value /= total;
  return o;
}

// A problem in device memory, in the second of two layers.
class Placed {
 public:
  Placed(const Problem& p, Layout layout)
      : p_(p),
        page_bytes_(2ull * p.heads.kv * 2 * layout.tokens_per_page * dim * 2),
        table_(make_table(p, layout)),
        pool_(make_pool(p, layout)),
        device_table_(table_),
        device_pool_(pool_),
        queries_(p.queries),
        sinks_(p.sinks),
        rows_(column(p, &Token::row)),
        positions_(column(p, &Token::position)),
        attended_(p.tokens.size() * stride()) {
    args_.tokens = {rows_.get(), positions_.get(), static_cast<std::uint32_t>(p.tokens.size())};
    args_.queries = reinterpret_cast<const __nv_bfloat16*>(queries_.get());
    args_.kv = {reinterpret_cast<std::byte*>(device_pool_.get()),
                page_bytes_,
                page_bytes_ / 2,
                device_table_.get(),
                table_stride_,
                layout.tokens_per_page,
                dim};
    args_.query_heads = p.heads.query;
    args_.kv_heads = p.heads.kv;
    args_.window = p.window;
    args_.sinks = p.sinks.empty() ? nullptr : sinks_.get();
    args_.attended = reinterpret_cast<__nv_bfloat16*>(attended_.get());
    args_.attended_stride = stride();
  }

  std::uint32_t stride() const { return p_.heads.query * dim + 64; }
  AttentionArgs& args() { return args_; }
  std::vector<std::uint16_t> result() const { return attended_.host(); }

  std::vector<std::uint16_t> decode(const std::vector<std::int32_t>& list, std::uint32_t splits, int times = 1) {
    attended_.fill(0xFF);
    const std::uint32_t longest = *std::max_element(p_.lengths.begin(), p_.lengths.end());
    const DecodeWork work{static_cast<std::uint32_t>(list.size()), p_.heads.kv, attention_segments_max(longest, p_.window)};
    DeviceArray<std::byte> scratch(attention_scratch_bytes(work, p_.heads.query, splits));
    must(cudaMemset(scratch.get(), 0, std::min<std::size_t>(scratch.size(), attention_tickets_max * 4)));
    DeviceArray<std::int32_t> device_list(list);
    for (int i = 0; i < times; ++i) must(attention_decode({args_, device_list.get(), work.count, splits, work.segments_max, scratch.get()}, nullptr));
    return result();
  }
  std::vector<std::uint16_t> prefill(const std::vector<PrefillTile>& tiles) {
    attended_.fill(0xFF);
    DeviceArray<PrefillTile> device_tiles(tiles);
    must(attention_prefill({args_, device_tiles.get(), static_cast<std::uint32_t>(tiles.size())}, nullptr));
    return result();
  }

 private:
  static std::vector<std::int32_t> column(const Problem& p, std::int32_t Token::*member) {
    std::vector<std::int32_t> values;
    for (const Token& token : p.tokens) values.push_back(token.*member);
    return values;
  }
  // Pages in random order. The first position that any token of a row looks at decides which entries are real.
  std::vector<std::int32_t> make_table(const Problem& p, Layout layout) {
    std::uint32_t pages = 3;
    for (const std::uint32_t length : p.lengths) {
      table_stride_ = std::max(table_stride_, ceil_div(length, layout.tokens_per_page) + 2);
      pages += ceil_div(length, layout.tokens_per_page);
    }
    page_count_ = pages;
    std::vector<std::int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(layout.seed);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::int32_t> table(p.lengths.size() * table_stride_, 0x7FFFFFFF);
    std::size_t next = 0;
    for (std::size_t row = 0; row < p.lengths.size(); ++row)
      for (std::uint32_t i = 0; i < ceil_div(p.lengths[row], layout.tokens_per_page); ++i, ++next)
        if ((i + 1) * layout.tokens_per_page > first_seen(p, row)) table[row * table_stride_ + i] = order[next];
    return table;
  }
  static std::uint32_t first_seen(const Problem& p, std::size_t row) {
    std::uint32_t first = p.lengths[row];
    for (const Token& token : p.tokens)
      if (token.row == static_cast<std::int32_t>(row)) {
        const auto position = static_cast<std::uint32_t>(token.position);
        first = std::min(first, p.window == 0 || position < p.window ? 0 : position - p.window + 1);
      }
    return first;
  }
  std::vector<std::uint16_t> make_pool(const Problem& p, Layout layout) const {
    std::vector<std::uint16_t> pool(page_count_ * page_bytes_ / 2, bf16_nan);
    const std::size_t half = std::size_t{layout.tokens_per_page} * dim;
    for (std::size_t row = 0; row < p.lengths.size(); ++row)
      for (std::uint32_t at = first_seen(p, row); at < p.lengths[row]; ++at)
        for (std::uint32_t h = 0; h < p.heads.kv; ++h) {
          const std::size_t page = table_[row * table_stride_ + at / layout.tokens_per_page];
          const std::size_t to = page * page_bytes_ / 2 + page_bytes_ / 4 + h * 2 * half + at % layout.tokens_per_page * dim;
          const std::size_t from = (std::size_t{at} * p.heads.kv + h) * dim;
          std::copy_n(p.keys[row].begin() + from, dim, pool.begin() + to);
          std::copy_n(p.values[row].begin() + from, dim, pool.begin() + to + half);
        }
    return pool;
  }

  const Problem& p_;
  std::uint64_t page_bytes_;
  std::uint32_t table_stride_ = 0;
  std::uint64_t page_count_ = 0;
  std::vector<std::int32_t> table_;
  std::vector<std::uint16_t> pool_;
  DeviceArray<std::int32_t> device_table_;
  DeviceArray<std::uint16_t> device_pool_;
  DeviceArray<std::uint16_t> queries_;
  DeviceArray<float> sinks_;
  DeviceArray<std::int32_t> rows_;
  DeviceArray<std::int32_t> positions_;
  DeviceArray<std::uint16_t> attended_;
  AttentionArgs args_;
};

std::vector<std::int32_t> all_tokens(const Problem& p) {
  std::vector<std::int32_t> list(p.tokens.size());
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Runs of one row cut into tiles of at most `tokens`.
std::vector<PrefillTile> tiles_of(const Problem& p, std::uint32_t tokens) {
  std::vector<PrefillTile> tiles;
  for (std::size_t t = 0; t < p.tokens.size(); ++t) {
    const bool goes_on = t > 0 && p.tokens[t].row == p.tokens[t - 1].row && p.tokens[t].position == p.tokens[t - 1].position + 1;
    if (goes_on && tiles.back().count < static_cast<std::int32_t>(tokens)) {
      ++tiles.back().count;
    } else {
      tiles.push_back({static_cast<std::int32_t>(t), 1});
    }
  }
  return tiles;
}

void expect_oracle(const Problem& p, const std::vector<std::uint16_t>& attended, std::uint32_t stride, std::size_t every = 1) {
  for (std::size_t t = 0; t < p.tokens.size(); t += every)
    for (std::uint32_t h = 0; h < p.heads.query; ++h) {
      const auto exact = oracle(p, t, h);
      double error = 0, norm = 0;
      for (std::uint32_t d = 0; d < dim; ++d) {
        const double got = bf16_value(attended[t * stride + h * dim + d]);
        error += (got - exact[d]) * (got - exact[d]);
        norm += exact[d] * exact[d];
      }
      ASSERT_LE(std::sqrt(error), 1e-2 * std::sqrt(norm)) << "position " << p.tokens[t].position << " head " << h;
    }
  for (std::size_t t = 0; t < p.tokens.size(); ++t)
    for (std::uint32_t d = p.heads.query * dim; d < stride; ++d) ASSERT_EQ(attended[t * stride + d], bf16_nan) << "the padding was written";
}

testing::AssertionResult same_bits(const std::vector<std::uint16_t>& got, const std::vector<std::uint16_t>& expected) {
  std::size_t differing = 0, first = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (got[i] != expected[i] && differing++ == 0) first = i;
  if (differing == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differing << " of " << expected.size() << " values differ, the first at " << first << ": "
                                     << bf16_value(got[first]) << " instead of " << bf16_value(expected[first]);
}

AttentionShape shape(const Problem& p) { return {p.heads.query, p.heads.kv, dim}; }

const std::vector<Heads> head_shapes = {{16, 2}, {8, 2}, {4, 2}, {3, 3}};
const std::vector<std::uint32_t> ends = {0, 1, 63, 64, 127, 128, 129, 300, 1023, 4000};

// One row for each of `ends`, so that what follows a token's position was never written.
Problem rows_of_one_token(Heads heads, std::uint32_t window, bool sinks, std::uint32_t seed) {
  std::vector<std::uint32_t> lengths;
  std::vector<Token> tokens;
  for (const std::uint32_t position : ends) {
    tokens.push_back({static_cast<std::int32_t>(lengths.size()), static_cast<std::int32_t>(position)});
    lengths.push_back(position + 1);
  }
  return random_problem(heads, window, sinks, lengths, tokens, seed);
}

// A chunk in the middle of a long row, a whole short row, and the last token of a third.
Problem chunks(Heads heads, std::uint32_t window, bool sinks, std::uint32_t seed) {
  std::vector<Token> tokens;
  for (std::int32_t at = 205; at < 790; ++at) tokens.push_back({1, at});
  for (std::int32_t at = 0; at < 140; ++at) tokens.push_back({0, at});
  tokens.push_back({2, 511});
  return random_problem(heads, window, sinks, {140, 790, 512}, tokens, seed);
}

TEST(CudaAttention, shapes_and_sizes) {
  EXPECT_TRUE(supports_attention({64, 8, 64}));
  EXPECT_TRUE(supports_attention({3, 3, 64}));
  EXPECT_FALSE(supports_attention({64, 8, 128}));
  EXPECT_FALSE(supports_attention({64, 4, 64})) << "16 heads a KV head";
  EXPECT_FALSE(supports_attention({9, 3, 64}));
  EXPECT_FALSE(supports_attention({9, 2, 64}));
  EXPECT_FALSE(supports_attention({8, 0, 64}));
  EXPECT_EQ(prefill_tile_tokens({64, 8, 64}), 24u);
  EXPECT_EQ(prefill_tile_tokens({3, 3, 64}), 192u);
  EXPECT_EQ(attention_segments_max(128, 0), 1u);
  EXPECT_EQ(attention_segments_max(129, 0), 2u);
  EXPECT_EQ(attention_segments_max(8192, 1), 1u);
  EXPECT_EQ(attention_segments_max(8192, 2), 2u);
  EXPECT_EQ(attention_segments_max(8192, 128), 2u);
  EXPECT_EQ(attention_segments_max(8192, 130), 3u);
  EXPECT_EQ(attention_segments_max(100, 130), 1u);
  EXPECT_EQ(attention_splits({1, 8, 64}, 132), 33u);
  EXPECT_EQ(attention_splits({1, 8, 8}, 132), 8u);
  EXPECT_EQ(attention_splits({1, 8, 2}, 132), 1u) << "a window";
  EXPECT_EQ(attention_splits({64, 8, 512}, 132), 1u);
  EXPECT_EQ(attention_splits({0, 8, 512}, 132), 1u);
  EXPECT_EQ(attention_scratch_bytes({1, 8, 64}, 64, 1), 0u);
  EXPECT_EQ(attention_scratch_bytes({1, 8, 64}, 64, 33), 4096u + 64u * 64u * 66u * 4u);
}

TEST(CudaAttention, decode_matches_double) {
  ALTHING_NEEDS_GPU();
  for (const Heads heads : head_shapes)
    for (const std::uint32_t window : {0u, 128u})
      for (const bool sinks : {false, true})
        for (const std::uint32_t tokens_per_page : {16u, 64u}) {
          SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv << " heads, window " << window << ", sinks " << sinks << ", pages of "
                                          << tokens_per_page);
          const Problem p = rows_of_one_token(heads, window, sinks, 10 + heads.query);
          Placed placed(p, {tokens_per_page, 3});
          expect_oracle(p, placed.decode(all_tokens(p), 1), placed.stride());
        }
}

TEST(CudaAttention, splits_keep_bits) {
  ALTHING_NEEDS_GPU();
  for (const Heads heads : head_shapes)
    for (const std::uint32_t window : {0u, 128u, 1000u}) {
      SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv << " heads, window " << window);
      const Problem p = rows_of_one_token(heads, window, true, 20);
      Placed placed(p, {16, 4});
      const auto whole = placed.decode(all_tokens(p), 1);
      for (const std::uint32_t splits : {2u, 8u, 64u}) {
        EXPECT_TRUE(same_bits(placed.decode(all_tokens(p), splits), whole)) << splits << " splits";
        EXPECT_TRUE(same_bits(placed.decode(all_tokens(p), splits, 3), whole)) << splits << " splits, with the tickets of the launch before";
      }
    }
}

TEST(CudaAttention, more_segments_than_scratch_keep_bits) {
  ALTHING_NEEDS_GPU();
  const Problem p = rows_of_one_token({16, 2}, 0, true, 25);
  Placed placed(p, {16, 4});
  const auto whole = placed.decode(all_tokens(p), 1);
  DeviceArray<std::byte> scratch(attention_scratch_bytes({static_cast<std::uint32_t>(ends.size()), 2, 4}, 16, 4));
  scratch.fill(0);
  DeviceArray<std::int32_t> list(all_tokens(p));
  must(cudaMemset(placed.args().attended, 0xFF, whole.size() * 2));
  must(attention_decode({placed.args(), list.get(), static_cast<std::uint32_t>(ends.size()), 4, 4, scratch.get()}, nullptr));
  EXPECT_TRUE(same_bits(placed.result(), whole));
}

TEST(CudaAttention, prefill_matches_double_and_decode) {
  ALTHING_NEEDS_GPU();
  for (const Heads heads : head_shapes)
    for (const std::uint32_t window : {0u, 128u, 5u})
      for (const bool sinks : {false, true}) {
        SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv << " heads, window " << window << ", sinks " << sinks);
        const Problem p = chunks(heads, window, sinks, 30 + window);
        Placed placed(p, {16, 5});
        const auto tiled = placed.prefill(tiles_of(p, prefill_tile_tokens(shape(p))));
        expect_oracle(p, tiled, placed.stride(), 7);
        EXPECT_TRUE(same_bits(placed.decode(all_tokens(p), 1), tiled));
      }
}

TEST(CudaAttention, rows_of_one_token_prefill_like_decode) {
  ALTHING_NEEDS_GPU();
  for (const Heads heads : head_shapes)
    for (const std::uint32_t window : {0u, 128u}) {
      const Problem p = rows_of_one_token(heads, window, true, 35);
      Placed placed(p, {64, 5});
      EXPECT_TRUE(same_bits(placed.prefill(tiles_of(p, 1)), placed.decode(all_tokens(p), 1)))
          << heads.query << "/" << heads.kv << " heads, window " << window;
    }
}

TEST(CudaAttention, tiles_and_pages_keep_bits) {
  ALTHING_NEEDS_GPU();
  for (const Heads heads : head_shapes)
    for (const std::uint32_t window : {0u, 128u}) {
      SCOPED_TRACE(testing::Message() << heads.query << "/" << heads.kv << " heads, window " << window);
      const Problem p = chunks(heads, window, true, 40);
      Placed placed(p, {16, 6});
      const auto expected = placed.prefill(tiles_of(p, prefill_tile_tokens(shape(p))));
      for (const std::uint32_t tokens : {1u, 3u, prefill_tile_tokens(shape(p)) - 1})
        EXPECT_TRUE(same_bits(placed.prefill(tiles_of(p, tokens)), expected)) << "tiles of " << tokens;
      for (const Layout layout : {Layout{16, 7}, Layout{32, 8}, Layout{64, 9}, Layout{256, 10}}) {
        Placed elsewhere(p, layout);
        EXPECT_TRUE(same_bits(elsewhere.prefill(tiles_of(p, prefill_tile_tokens(shape(p)))), expected)) << "pages of " << layout.tokens_per_page;
        EXPECT_TRUE(same_bits(elsewhere.decode(all_tokens(p), 1), expected)) << "pages of " << layout.tokens_per_page;
      }
    }
}

TEST(CudaAttention, places_without_tokens) {
  ALTHING_NEEDS_GPU();
  Problem p = random_problem({16, 2}, 0, true, {200}, {{0, 198}, {0, 199}, {-1, 0}, {-1, 1}}, 50);
  Placed placed(p, {16, 11});
  const std::size_t stride = placed.stride(), width = p.heads.query * dim;
  const auto is = [&](const std::vector<std::uint16_t>& a, std::size_t token, std::uint16_t bits) {
    return std::all_of(a.begin() + token * stride, a.begin() + token * stride + width, [&](std::uint16_t v) { return v == bits; });
  };
  for (const std::uint32_t splits : {1u, 2u}) {
    const auto attended = placed.decode({1, -1, 2, -1}, splits);
    EXPECT_TRUE(is(attended, 0, bf16_nan)) << "not in the list";
    EXPECT_FALSE(is(attended, 1, bf16_nan));
    EXPECT_TRUE(is(attended, 2, 0)) << "row -1";
    EXPECT_TRUE(is(attended, 3, bf16_nan)) << "not in the list";
  }
  const auto attended = placed.prefill({{0, 0}, {0, 2}, {2, 2}, {-1, 0}});
  EXPECT_FALSE(is(attended, 0, bf16_nan));
  EXPECT_TRUE(is(attended, 2, 0) && is(attended, 3, 0)) << "row -1";
}

TEST(CudaAttention, refuses_what_it_cannot_do) {
  ALTHING_NEEDS_GPU();
  const Problem p = random_problem({16, 2}, 0, false, {20}, {{0, 19}}, 60);
  Placed placed(p, {16, 12});
  DeviceArray<std::int32_t> list(std::vector<std::int32_t>{0});
  DeviceArray<PrefillTile> tiles(std::vector<PrefillTile>{{0, 1}});
  const AttentionArgs good = placed.args();
  AttentionArgs wide = good, short_pages = good, odd_pages = good;
  wide.kv.head_dim = 128;
  short_pages.kv.tokens_per_page = 8;
  odd_pages.kv.tokens_per_page = 48;
  for (const AttentionArgs& bad : {wide, short_pages, odd_pages}) {
    EXPECT_EQ(attention_decode({bad, list.get(), 1, 1, 1, nullptr}, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(attention_prefill({bad, tiles.get(), 1}, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(attention_decode({good, list.get(), 1, 2, 1, nullptr}, nullptr), cudaErrorInvalidValue) << "splits without scratch";
  EXPECT_EQ(attention_decode({good, list.get(), 0, 1, 1, nullptr}, nullptr), cudaSuccess);
  EXPECT_EQ(attention_prefill({good, tiles.get(), 0}, nullptr), cudaSuccess);
}

TEST(CudaAttention, runs_in_a_graph) {
  ALTHING_NEEDS_GPU();
  const Problem p = chunks({16, 2}, 0, true, 70);
  Placed placed(p, {16, 13});
  const auto expected = placed.decode(all_tokens(p), 1);
  const std::vector<PrefillTile> most(tiles_of(p, 16));
  DeviceArray<PrefillTile> tiles(most);
  DeviceArray<std::int32_t> list(std::vector<std::int32_t>{0, 600, static_cast<std::int32_t>(p.tokens.size()) - 1});
  DeviceArray<std::byte> scratch(attention_scratch_bytes({3, 2, 7}, 16, 5));
  scratch.fill(0);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(attention_prefill({placed.args(), tiles.get(), static_cast<std::uint32_t>(most.size())}, stream));
  CUDA_OK(attention_decode({placed.args(), list.get(), 3, 5, 7, scratch.get()}, stream));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) {
    CUDA_OK(cudaMemset(placed.args().attended, 0xFF, expected.size() * 2));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(same_bits(placed.result(), expected));
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// For sanitizers, which are slow: rows of two segments, with and without a window.
TEST(CudaSmall, attention) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t window : {0u, 24u}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    std::vector<Token> tokens;
    for (std::int32_t at = 122; at < 132; ++at) tokens.push_back({1, at});
    tokens.push_back({0, 19});
    const Problem p = random_problem({8, 2}, window, true, {20, 132}, tokens, 80 + window);
    Placed placed(p, {16, 14});
    const auto whole = placed.decode(all_tokens(p), 1);
    expect_oracle(p, whole, placed.stride());
    EXPECT_TRUE(same_bits(placed.decode(all_tokens(p), 2, 2), whole)) << "two splits";
    EXPECT_TRUE(same_bits(placed.prefill(tiles_of(p, prefill_tile_tokens(shape(p)))), whole)) << "prefill";
  }
}

}  // namespace
}  // namespace althing::tests
