// What happens to a residual between linear layers, against double precision on the host; what may not be written stays poisoned; and the promise
// that a token's bits depend neither on its batch nor on the places without a token in it.
#include "gpu/cuda/norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "gpu/ops/fixed_point.hpp"
#include "scheduler/vocabulary/expert_counts.hpp"
#include "tests/gpu/cuda/norm_problem.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

constexpr std::uint32_t hidden_sizes[] = {2880, 192, 720, 1440, 4096};
constexpr std::uint32_t batches[] = {1, 7, 33, 256};
constexpr std::uint32_t tokens_most = 256;

struct Experts {
  std::uint32_t count, choices;
};
constexpr Experts expert_shapes[] = {{128, 4}, {32, 4}, {32, 1}, {128, 16}, {100, 3}, {7, 7}};

// Whether `bits` is what a value within 1e-5 of `exact` is rounded to.
bool rounds_to(std::uint16_t bits, double exact) {
  const double slack = 1e-5 * std::fabs(exact);
  const auto rounded = [](double value) { return bf16_value(bf16_bits(static_cast<float>(value))); };
  const float got = bf16_value(bits);
  return rounded(exact - slack) <= got && got <= rounded(exact + slack);
}

// Elements of one row that are not the norm of x.
std::uint32_t wrong_normed(std::span<const float> x, const std::vector<float>& norm, const std::uint16_t* normed) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(x.size()) + norm_epsilon);
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += rounds_to(normed[i], x[i] * inverse * norm[i]) ? 0 : 1;
  return wrong;
}

// The norm of every token's residual; from `written` on a row is as it was, and so is the row behind the last.
void expect_normed(const std::vector<float>& residual, const std::vector<float>& norm, const std::vector<std::uint16_t>& normed,
                   std::uint32_t written) {
  const std::size_t hidden = norm.size(), stride = k_padded(static_cast<std::uint32_t>(hidden)) + stride_beyond, tokens = normed.size() / stride - 1;
  for (std::size_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(wrong_normed(std::span(residual).subspan(t * hidden, hidden), norm, normed.data() + t * stride), 0u) << "of token " << t;
    for (std::size_t i = written; i < stride; ++i) ASSERT_EQ(normed[t * stride + i], 0xFFFF) << "token " << t << ", element " << i;
  }
  for (std::size_t i = tokens * stride; i < normed.size(); ++i) ASSERT_EQ(normed[i], 0xFFFF) << "behind the last token";
}

template <class T>
void expect_poison(const std::vector<T>& values, std::size_t from, std::uint32_t word, const char* what) {
  for (std::size_t i = from; i < values.size(); ++i) {
    std::uint32_t bits;
    static_assert(sizeof(T) == sizeof bits);
    std::memcpy(&bits, &values[i], sizeof bits);
    ASSERT_EQ(bits, word) << what << ", element " << i;
  }
}

void expect_begin(const BeginProblem& p) {
  const BeginResult r = run_begin(p, first_tokens(p.tokens));
  for (std::uint32_t t = 0; t < p.tokens; ++t) {
    const std::int32_t row = p.rows[t], id = p.ids[t] >= 0 ? p.ids[t] : row < 0 ? 0 : p.last_drawn[static_cast<std::size_t>(row)];
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i < p.hidden; ++i)
      wrong += r.residual[std::size_t{t} * p.hidden + i] == bf16_value(p.table[static_cast<std::size_t>(id) * p.hidden + i]) ? 0 : 1;
    EXPECT_EQ(wrong, 0u) << "elements of token " << t << ", id " << p.ids[t] << ", row " << row;
    for (std::uint32_t i = 0; i < p.half; ++i) {
      // The angle is a float product. Two roundings to float: of the cosine, and of its product with the factor.
      const double angle = static_cast<float>(p.positions[t]) * p.frequencies[i];
      EXPECT_NEAR(r.cosine[t * p.half + i], std::cos(angle) * p.attention_factor, 1.8e-7 * p.attention_factor) << "position " << p.positions[t];
      EXPECT_NEAR(r.sine[t * p.half + i], std::sin(angle) * p.attention_factor, 1.8e-7 * p.attention_factor) << "position " << p.positions[t];
    }
  }
  expect_normed(r.residual, p.norm, r.normed, p.hidden);
  expect_poison(r.residual, std::size_t{p.tokens} * p.hidden, 0xFFFFFFFF, "residual");
  expect_poison(r.cosine, std::size_t{p.tokens} * p.half, 0xFFFFFFFF, "cosine");
  expect_poison(r.sine, std::size_t{p.tokens} * p.half, 0xFFFFFFFF, "sine");
  for (std::uint32_t e = 0; e < begin_experts; ++e) EXPECT_EQ(r.counts[e], 0u) << "expert " << e;
  expect_poison(r.counts, begin_experts, poison_word, "counts");
  for (std::uint32_t i = 0; i < begin_entries; ++i)
    ASSERT_EQ(r.entries[begin_entries - 1 - i], static_cast<std::int32_t>(i < begin_updates ? i : poison_word)) << "page-table update " << i;
}

// Every element exactly: sums are integers, and the residual is added to once. NaN where an addend does not fit.
std::vector<float> combined(const CombineProblem& p) {
  std::vector<float> residual = p.residual;
  for (std::uint32_t t = 0; t < p.tokens; ++t) {
    if (p.rows[t] < 0) continue;
    for (std::uint32_t i = 0; i < p.hidden; ++i) {
      std::int64_t sum = 0;
      bool fits = true;
      for (std::uint32_t c = 0; c < p.choices; ++c) {
        const std::size_t pair = std::size_t{t} * p.choices + c;
        const double value = double{p.weights[pair]} * p.outputs[pair * p.hidden + i];
        fits = fits && gpu::fits_fixed_point(value);
        if (fits) sum += gpu::to_fixed_point(value);
      }
      residual[std::size_t{t} * p.hidden + i] += fits ? gpu::from_fixed_point(sum) : std::numeric_limits<float>::quiet_NaN();
    }
  }
  return residual;
}

void expect_combine(const CombineProblem& p) {
  const CombineResult r = run_combine(p, first_tokens(p.tokens));
  const auto expected = combined(p);
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) wrong += std::memcmp(&r.residual[i], &expected[i], sizeof(float)) == 0 ? 0 : 1;
  EXPECT_EQ(wrong, 0u) << "of " << expected.size() << " sums";
  for (std::size_t i = expected.size(); i < r.residual.size(); ++i) ASSERT_EQ(r.residual[i], 7.0F) << "behind the last token";
  expect_normed(expected, p.norm, r.normed, p.hidden);
  for (std::uint32_t e = 0; e < p.experts; ++e) EXPECT_EQ(r.counts[e], 0u) << "expert " << e;
  expect_poison(r.counts, p.experts, poison_word, "counts");
}

// Logits in double from the normed tokens as the device rounded them. Errors are in proportion to the size of what is added.
void expect_logits(const RouteProblem& p, const RouteResult& r, bool biased) {
  const std::uint32_t stride = k_padded(p.hidden) + stride_beyond;
  for (std::uint32_t t = 0; t < p.tokens; ++t)
    for (std::uint32_t e = 0; e < p.experts; ++e) {
      double exact = biased ? p.bias[e] : 0, size = std::fabs(exact);
      for (std::uint32_t k = 0; k < p.hidden; ++k) {
        const double product = double{p.weights.values[std::size_t{e} * p.hidden + k]} * bf16_value(r.normed[std::size_t{t} * stride + k]);
        exact += product, size += std::fabs(product);
      }
      ASSERT_NEAR(r.logits[std::size_t{t} * p.experts + e], exact, 5e-6 * size) << "token " << t << ", expert " << e;
    }
}

// What follows from the logits: choices, weights, lists, counts. NaN never wins.
void expect_choices(const RouteProblem& p, const RouteResult& r, const std::vector<float>& logits) {
  std::vector<std::set<std::int32_t>> lists(p.experts);
  for (std::uint32_t t = 0; t < p.tokens; ++t) {
    const float* row = logits.data() + std::size_t{t} * p.experts;
    std::vector<std::int32_t> order(p.experts);
    std::iota(order.begin(), order.end(), 0);
    const auto rank = [&](std::int32_t e) { return std::isnan(row[e]) ? -INFINITY : row[e]; };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return rank(a) > rank(b); });
    double sum = 0;
    for (std::uint32_t c = 0; c < p.choices; ++c) sum += std::exp(double{row[order[c]]} - row[order[0]]);
    for (std::uint32_t c = 0; c < p.choices; ++c) {
      const std::size_t pair = std::size_t{t} * p.choices + c;
      ASSERT_EQ(r.chosen[pair], p.rows[t] < 0 ? -1 : order[c]) << "choice " << c << " of token " << t;
      const double weight = p.rows[t] < 0 ? 0 : std::exp(double{row[order[c]]} - row[order[0]]) / sum;
      ASSERT_NEAR(r.weights[pair], weight, 1e-5 * weight) << "choice " << c << " of token " << t;
      if (p.rows[t] >= 0) lists[static_cast<std::size_t>(order[c])].insert(static_cast<std::int32_t>(pair));
    }
  }
  for (std::uint32_t e = 0; e < p.experts; ++e) {
    const auto begin = r.pairs.begin() + std::ptrdiff_t{e} * r.capacity;
    ASSERT_EQ(r.counts[e], lists[e].size()) << "expert " << e;
    ASSERT_EQ(std::set<std::int32_t>(begin, begin + r.counts[e]), lists[e]) << "expert " << e;
    for (auto at = begin + r.counts[e]; at != begin + r.capacity; ++at) ASSERT_EQ(*at, static_cast<std::int32_t>(poison_word)) << "expert " << e;
  }
  expect_poison(r.pairs, std::size_t{p.experts} * r.capacity, poison_word, "pairs");
  expect_poison(r.counts, p.experts, poison_word, "counts");
  expect_poison(r.chosen, std::size_t{p.tokens} * p.choices, poison_word, "chosen");
  expect_poison(r.weights, std::size_t{p.tokens} * p.choices, 0xFFFFFFFF, "weights");
}

// What was counted, in the order of RouteResult::tallies.
std::vector<double> counted(const RouteResult& r) {
  std::vector<double> added;
  for (std::size_t i = 0; i < r.tallies.size(); ++i) added.push_back(static_cast<double>(r.tallies[i] - 1000 - i));
  return added;
}

// Against logits, choices and weights of the same run, in double. `counts` false: nobody counts.
void expect_tallies(const RouteProblem& p, const RouteResult& r, bool counts) {
  const std::vector<double> found = counted(r);
  std::vector<double> expected(found.size());
  const TallyLayout& layout = r.layout;
  double tokens = 0;
  for (std::uint32_t t = 0; counts && t < p.tokens; ++t) {
    if (p.rows[t] < 0) continue;
    const float* logits = r.logits.data() + std::size_t{t} * p.experts;
    const bool finite = std::all_of(logits, logits + p.experts, [](float logit) { return std::isfinite(logit); });
    for (std::uint32_t c = 0; c < p.choices; ++c) {
      const auto e = static_cast<std::uint32_t>(r.chosen[std::size_t{t} * p.choices + c]);
      ++layout.tokens(expected.data(), 1)[e];
      if (!finite) continue;
      const double weight = r.weights[std::size_t{t} * p.choices + c] * gate_weight_unit;
      layout.gate_weights(expected.data(), 1)[e] += std::nearbyint(weight);
      layout.places(expected.data(), 1)[c] += std::nearbyint(weight);
    }
    if (!finite) continue;
    ++tokens;
    double first = -INFINITY, second = -INFINITY, mean = 0, all = 0, entropy = 0, variance = 0;
    for (std::uint32_t e = 0; e < p.experts; ++e) {
      second = std::max(second, std::min(first, double{logits[e]})), first = std::max(first, double{logits[e]});
      mean += double{logits[e]} / p.experts, all += std::exp(double{logits[e]});
    }
    for (std::uint32_t e = 0; e < p.experts; ++e) {
      const double share = std::exp(double{logits[e]}) / all;
      if (share > 0) entropy -= share * std::log(share);
      variance += (logits[e] - mean) * (logits[e] - mean) / p.experts;
    }
    double* const router = layout.router(expected.data(), 1);
    router[0] += 1, router[1] += entropy * router_figure_unit, router[2] += variance * router_figure_unit;
    router[3] += (p.experts < 2 ? 0 : first - second) * router_figure_unit;
  }
  const double* const router = layout.router(expected.data(), 1);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool figure = &expected[i] > router && &expected[i] < router + router_sums;
    if (!figure) EXPECT_EQ(found[i], expected[i]) << "word " << i;
    if (figure) EXPECT_NEAR(found[i] / router_figure_unit, expected[i] / router_figure_unit, 2e-5 * tokens + 2e-5 * expected[i] / router_figure_unit);
  }
}

void expect_route(const RouteProblem& p) {
  const RouteResult r = run_route(p, first_tokens(p.tokens));
  expect_normed(p.residual, p.norm, r.normed, k_padded(p.hidden));
  expect_logits(p, r, true);
  expect_poison(r.logits, std::size_t{p.tokens} * p.experts, 0xFFFFFFFF, "logits");
  expect_choices(p, r, r.logits);
  expect_tallies(p, r, true);
}

TEST(CudaNorm, begin_step_is_embedding_norm_and_rotation) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(1);
  for (const std::uint32_t hidden : hidden_sizes)
    for (const std::uint32_t tokens : batches) {
      SCOPED_TRACE(testing::Message() << "hidden " << hidden << ", " << tokens << " tokens");
      expect_begin(begin_problem(hidden, tokens, random));
    }
  expect_begin(begin_problem(2880, 0, random));  // page tables and counts alone
}

TEST(CudaNorm, combine_is_the_fixed_point_sum_to_the_bit) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(2);
  for (const std::uint32_t hidden : hidden_sizes)
    for (const std::uint32_t choices : {4u, 1u, 3u, 16u})
      for (const std::uint32_t tokens : {1u, 33u}) {
        SCOPED_TRACE(testing::Message() << "hidden " << hidden << ", " << choices << " choices, " << tokens << " tokens");
        expect_combine(combine_problem(hidden, tokens, choices, random));
      }
}

TEST(CudaNorm, combine_gives_nan_where_an_addend_does_not_fit) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t tokens = 20, choices = 3;
  constexpr float edge = 0x1p22F;
  std::mt19937 random(3);
  for (const std::uint32_t hidden : hidden_sizes) {
    CombineProblem p = combine_problem(hidden, tokens, choices, random);
    std::fill(p.rows.begin(), p.rows.end(), 1);
    std::fill_n(p.outputs.begin(), p.outputs.size(), 0.25F);
    std::fill_n(p.weights.begin(), p.weights.size(), 0.5F);
    const float values[] = {
        2 * edge,      std::nextafter(2 * edge, 0.0F), -2 * edge, -std::nextafter(2 * edge, 0.0F), INFINITY, -INFINITY, NAN, 3e38F, -3e38F, 1e-30F,
        0x1.000002p-1F};
    constexpr bool fits[] = {false, true, false, true, false, false, false, false, false, true, true};
    for (std::uint32_t t = 0; t < std::size(values); ++t)
      p.outputs[(std::size_t{t} * choices + t % choices) * hidden + (t * 37 + 11) % hidden] = values[t];
    const CombineResult r = run_combine(p, first_tokens(tokens));
    const auto expected = combined(p);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const bool whole = t >= std::size(values) || fits[t];
      for (std::uint32_t i = 0; i < hidden; ++i) {
        const std::size_t at = std::size_t{t} * hidden + i;
        const bool is_nan = !whole && i == (t * 37 + 11) % hidden;
        ASSERT_EQ(std::isnan(r.residual[at]), is_nan) << "hidden " << hidden << ", token " << t << ", element " << i;
        if (!is_nan) ASSERT_EQ(r.residual[at], expected[at]) << "hidden " << hidden << ", token " << t << ", element " << i;
      }
      // Nothing of such a token can be used; those beside it are whole.
      const std::uint16_t* normed = r.normed.data() + std::size_t{t} * (k_padded(hidden) + stride_beyond);
      if (whole) EXPECT_EQ(wrong_normed(std::span(expected).subspan(std::size_t{t} * hidden, hidden), p.norm, normed), 0u) << "of token " << t;
      for (std::uint32_t i = 0; !whole && i < hidden; ++i) ASSERT_TRUE(std::isnan(bf16_value(normed[i]))) << "token " << t << ", element " << i;
    }
  }
}

TEST(CudaNorm, route_is_norm_router_and_choice) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(4);
  for (const std::uint32_t hidden : hidden_sizes)
    for (const Experts experts : expert_shapes) {
      ASSERT_TRUE(supports_router(hidden, experts.count, experts.choices));
      for (const std::uint32_t tokens : {1u, 33u}) {
        SCOPED_TRACE(testing::Message() << "hidden " << hidden << ", " << experts.count << " experts, " << experts.choices << " choices, " << tokens
                                        << " tokens");
        expect_route(route_problem(hidden, tokens, experts.count, experts.choices, random));
      }
    }
}

TEST(CudaNorm, equal_logits_choose_the_smaller_id) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t tokens = 19;
  std::mt19937 random(5);
  for (const std::uint32_t hidden : {2880u, 192u})
    for (const Experts experts : expert_shapes) {
      SCOPED_TRACE(testing::Message() << "hidden " << hidden << ", " << experts.count << " experts, " << experts.choices << " choices");
      // Weights of nothing: the logits are the biases, of which many are equal.
      RouteProblem p = route_problem(hidden, tokens, experts.count, experts.choices, random);
      std::fill(p.weights.tiles.begin(), p.weights.tiles.end(), std::byte{0});
      for (float& b : p.bias) b = static_cast<float>(random() % 3);
      const std::vector<float> constant = p.bias;
      const auto logits_of = [&](const std::vector<float>& bias) {
        std::vector<float> all;
        for (std::uint32_t t = 0; t < tokens; ++t) all.insert(all.end(), bias.begin(), bias.end());
        return all;
      };
      expect_choices(p, run_route(p, first_tokens(tokens)), logits_of(p.bias));
      std::fill(p.bias.begin(), p.bias.end(), -1.5F);
      const RouteResult all_equal = run_route(p, first_tokens(tokens));
      expect_choices(p, all_equal, logits_of(p.bias));
      for (std::uint32_t c = 0; c < experts.choices; ++c) EXPECT_EQ(all_equal.chosen[c], static_cast<std::int32_t>(c));
      if (experts.choices == experts.count) continue;
      // NaN is below every number, of whatever sign.
      p.bias = constant;
      p.bias[0] = NAN, p.bias[1 % experts.count] = -NAN, p.bias[2] = -1e30F;
      const RouteResult with_nan = run_route(p, first_tokens(tokens));
      expect_choices(p, with_nan, logits_of(p.bias));
      expect_tallies(p, with_nan, true);
    }
}

// The same product in the two rows of a tile, and in tiles of two blocks of a cluster: equal weights give equal bits, so the smaller id is chosen.
TEST(CudaNorm, experts_with_equal_weights_have_equal_logits) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t tokens = 33, experts = 128, choices = 4;
  std::mt19937 random(6);
  for (const std::uint32_t hidden : hidden_sizes) {
    RouteProblem p = route_problem(hidden, tokens, experts, choices, random);
    // Tile 0 eight times; inside it rows g + 8 (registers 1 and 3) repeat rows g (registers 0 and 2).
    const std::size_t tile_row = std::size_t{k_tiles(hidden)} * tile_bytes(WeightFormat::bf16);
    for (std::size_t at = 0; at < tile_row; at += 8) std::memcpy(p.weights.tiles.data() + at + 4, p.weights.tiles.data() + at, 4);
    for (std::uint32_t t = 1; t < experts / row_tile; ++t) std::memcpy(p.weights.tiles.data() + t * tile_row, p.weights.tiles.data(), tile_row);
    const RouteResult r = run_route(p, first_tokens(tokens), {.biased = false});
    for (std::uint32_t t = 0; t < tokens; ++t)
      for (std::uint32_t e = 8; e < experts; ++e)
        ASSERT_EQ(r.logits[t * experts + e], r.logits[t * experts + e % 8]) << "hidden " << hidden << ", token " << t << ", expert " << e;
    expect_choices(p, r, r.logits);
    for (std::uint32_t t = 0; t < tokens; ++t)
      for (std::uint32_t c = 1; c < choices && p.rows[t] >= 0; ++c)
        EXPECT_EQ(r.chosen[t * choices + c], r.chosen[t * choices] + static_cast<std::int32_t>(8 * c)) << "hidden " << hidden << ", token " << t;
  }
}

TEST(CudaNorm, what_is_left_out_changes_nothing_else) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(7);
  const RouteProblem p = route_problem(2880, 33, 128, 4, random);
  const RouteResult whole = run_route(p, first_tokens(p.tokens)), unwatched = run_route(p, first_tokens(p.tokens), {.watched = false});
  EXPECT_TRUE(unwatched.chosen == whole.chosen && unwatched.counts == whole.counts && unwatched.normed == whole.normed);
  expect_choices(p, unwatched, whole.logits);
  expect_poison(unwatched.logits, 0, 0xFFFFFFFF, "logits");
  expect_tallies(p, unwatched, false);
  const RouteResult unbiased = run_route(p, first_tokens(p.tokens), {.biased = false});
  expect_logits(p, unbiased, false);
  expect_choices(p, unbiased, unbiased.logits);
}

TEST(CudaNorm, places_without_a_token_change_nothing) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(8);
  for (const std::uint32_t hidden : hidden_sizes) {
    const auto real_of = [](const std::vector<std::int32_t>& rows) {
      Picked real;
      for (std::uint32_t t = 0; t < rows.size(); ++t)
        if (rows[t] >= 0) real.push_back(t);
      return real;
    };
    const std::uint32_t tokens = 40, stride = k_padded(hidden) + stride_beyond;
    const RouteProblem route = route_problem(hidden, tokens, 32, 4, random);
    const Picked real = real_of(route.rows);
    ASSERT_EQ(real.size(), 35u);
    const RouteResult padded = run_route(route, first_tokens(tokens)), bare = run_route(route, real);
    EXPECT_TRUE(same_rows(bare.logits, padded.logits, real, 32)) << hidden;
    EXPECT_TRUE(same_rows(bare.chosen, padded.chosen, real, 4)) << hidden;
    EXPECT_TRUE(same_rows(bare.weights, padded.weights, real, 4)) << hidden;
    EXPECT_TRUE(bare.counts == padded.counts && bare.tallies == padded.tallies) << hidden;
    const CombineProblem combine = combine_problem(hidden, tokens, 4, random);
    const CombineResult with = run_combine(combine, first_tokens(tokens)), without = run_combine(combine, real);
    EXPECT_TRUE(same_rows(without.residual, with.residual, real, hidden)) << hidden;
    EXPECT_TRUE(same_rows(without.normed, with.normed, real, stride)) << hidden;
    for (std::uint32_t t = 0; t < tokens; ++t)
      if (combine.rows[t] < 0) EXPECT_EQ(std::memcmp(&with.residual[t * hidden], &combine.residual[t * hidden], hidden * 4), 0) << "token " << t;
  }
}

TEST(CudaNorm, bits_do_not_depend_on_the_batch) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(9);
  for (const std::uint32_t hidden : hidden_sizes) {
    const std::uint32_t stride = k_padded(hidden) + stride_beyond;
    const BeginProblem begin = begin_problem(hidden, tokens_most, random);
    const CombineProblem combine = combine_problem(hidden, tokens_most, 4, random);
    const BeginResult begun = run_begin(begin, first_tokens(tokens_most));
    const CombineResult sums = run_combine(combine, first_tokens(tokens_most));
    for (const std::uint32_t count : batches) {
      const Picked picked = some_tokens(count, tokens_most, random);
      const BeginResult b = run_begin(begin, picked);
      EXPECT_TRUE(same_rows(b.residual, begun.residual, picked, hidden)) << hidden << ", " << count;
      EXPECT_TRUE(same_rows(b.normed, begun.normed, picked, stride)) << hidden << ", " << count;
      EXPECT_TRUE(same_rows(b.cosine, begun.cosine, picked, begin.half)) << hidden << ", " << count;
      EXPECT_TRUE(same_rows(b.sine, begun.sine, picked, begin.half)) << hidden << ", " << count;
      const CombineResult c = run_combine(combine, picked);
      EXPECT_TRUE(same_rows(c.residual, sums.residual, picked, hidden)) << hidden << ", " << count;
      EXPECT_TRUE(same_rows(c.normed, sums.normed, picked, stride)) << hidden << ", " << count;
    }
    for (const Experts experts : {Experts{128, 4}, Experts{32, 4}}) {
      const RouteProblem route = route_problem(hidden, tokens_most, experts.count, experts.choices, random);
      const RouteResult routed = run_route(route, first_tokens(tokens_most));
      for (const std::uint32_t count : batches) {
        const Picked picked = some_tokens(count, tokens_most, random);
        const RouteResult r = run_route(route, picked);
        EXPECT_TRUE(same_rows(r.normed, routed.normed, picked, stride)) << hidden << ", " << experts.count << " experts, " << count;
        EXPECT_TRUE(same_rows(r.logits, routed.logits, picked, experts.count)) << hidden << ", " << experts.count << " experts, " << count;
        EXPECT_TRUE(same_rows(r.chosen, routed.chosen, picked, experts.choices)) << hidden << ", " << experts.count << " experts, " << count;
        EXPECT_TRUE(same_rows(r.weights, routed.weights, picked, experts.choices)) << hidden << ", " << experts.count << " experts, " << count;
      }
    }
  }
}

void expect_gathered(std::uint32_t count, std::uint32_t stride) {
  constexpr std::uint32_t inputs = 70;
  std::mt19937 random(count + stride);
  const auto values = random_bf16(inputs * std::size_t{stride}, random);
  std::vector<std::int32_t> list(count);
  for (auto& i : list) i = static_cast<std::int32_t>(random() % inputs);
  const DeviceArray<std::uint16_t> input(values), output((count + 1) * std::size_t{stride});
  const DeviceArray<std::int32_t> device_list(list);
  must(gather_rows(
      {device_list.get(), count, reinterpret_cast<const __nv_bfloat16*>(input.get()), reinterpret_cast<__nv_bfloat16*>(output.get()), stride},
      nullptr));
  const auto got = output.host();
  EXPECT_TRUE(same_rows(got, values, Picked(list.begin(), list.end()), stride)) << count << " rows of " << stride;
  for (std::size_t i = count * std::size_t{stride}; i < got.size(); ++i) ASSERT_EQ(got[i], 0xFFFF) << "behind the last row";
}

TEST(CudaNorm, gather_copies_rows) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t stride : {2880u, 192u, 8u, 720u, 4096u})
    for (const std::uint32_t count : batches) expect_gathered(count, stride);
}

// For sanitizers, which are slow: every kernel once or twice.
TEST(CudaSmall, norm) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(10);
  expect_begin(begin_problem(192, 3, random));
  expect_combine(combine_problem(192, 3, 4, random));
  expect_route(route_problem(192, 9, 32, 4, random));
  expect_route(route_problem(720, 3, 100, 3, random));
  expect_gathered(3, 192);
}

}  // namespace
}  // namespace althing::tests
