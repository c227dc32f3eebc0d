// Draws: greedy ties, filters, the distribution, and the pinned key function that every sampled stream depends on.
#include "gpu/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace althing::gpu {
namespace {

SamplingParameters warm(float temperature, std::uint64_t seed = 7) {
  SamplingParameters p;
  p.temperature = temperature;
  p.seed = seed;
  return p;
}

// Which tokens are ever drawn, and how often.
std::map<TokenId, int> histogram(const std::vector<float>& logits, SamplingParameters p, int draws) {
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[draw(logits, p, static_cast<std::uint32_t>(i)).value()];
  return counts;
}

TEST(Sampling, greedy_takes_the_smallest_id_among_equals) {
  EXPECT_EQ(draw(std::vector<float>{1, 3, 2, 3}, {}, 0), 1u);
  EXPECT_EQ(draw(std::vector<float>{5}, {}, 0), 0u);
  EXPECT_EQ(draw(std::vector<float>{-0.0F, 0.0F}, {}, 0), 0u);
}

TEST(Sampling, a_nonfinite_logit_voids_the_draw) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT_FALSE(draw(std::vector<float>{1, bad, 2}, {}, 0).has_value());
    EXPECT_FALSE(draw(std::vector<float>{1, 2, bad}, warm(1), 0).has_value());
  }
}

TEST(Sampling, keys_are_pinned) {
  // These values are the contract: recorded streams replay only while they hold.
  const std::uint64_t key = draw_key(1, 2, 3);
  EXPECT_EQ(key, draw_key(1, 2, 3));
  EXPECT_EQ(key, 0x6440369fb0283683u);
  EXPECT_EQ(noise_bits(key, 0), 0x337ed0c4d0587203u);
  EXPECT_EQ(noise_bits(key, 201087), 0x8b8afc491177c21cu);
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    for (std::uint32_t choice = 0; choice < 16; ++choice)
      for (std::uint32_t position = 0; position < 16; ++position) keys.insert(draw_key(seed, choice, position));
  EXPECT_EQ(keys.size(), 4096u);
}

TEST(Sampling, noise_is_finite_for_all_bits_and_has_the_gumbel_mean) {
  EXPECT_TRUE(std::isfinite(gumbel(0)));
  EXPECT_TRUE(std::isfinite(gumbel(std::numeric_limits<std::uint64_t>::max())));
  double sum = 0;
  for (TokenId i = 0; i < 200'000; ++i) sum += gumbel(noise_bits(5, i));
  EXPECT_NEAR(sum / 200'000, 0.5772, 0.01);
}

TEST(Sampling, draws_follow_the_softmax) {
  const std::vector<float> logits{0.0F, 1.0F, 2.0F, -1.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    double total = 0;
    for (const float l : logits) total += std::exp(double{l} / temperature);
    auto counts = histogram(logits, warm(temperature), 40'000);
    for (TokenId t = 0; t < 4; ++t)
      EXPECT_NEAR(counts[t] / 40'000.0, std::exp(double{logits[t]} / temperature) / total, 0.01) << temperature << " " << t;
  }
}

TEST(Sampling, a_draw_depends_on_seed_choice_and_position_only) {
  std::vector<float> logits(500);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 17) * 0.1F;
  SamplingParameters p = warm(1, 3);
  const auto first = draw(logits, p, 9);
  EXPECT_EQ(draw(logits, p, 9), first);
  EXPECT_NE(draw(logits, p, 10), first);
  p.choice = 1;
  EXPECT_NE(draw(logits, p, 9), first);
  EXPECT_NE(draw(logits, warm(1, 4), 9), first);
}

TEST(Sampling, top_k_keeps_the_most_likely_and_the_smaller_ids) {
  SamplingParameters p = warm(2);
  p.top_k = 2;
  auto counts = histogram({1, 5, 4, 4, 4}, p, 2'000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[2], 0);
  p.top_k = 1;
  EXPECT_EQ(histogram({1, 5, 4, 5}, p, 200).size(), 1u);
  p.top_k = 99;
  EXPECT_EQ(histogram({1, 1, 1}, p, 500).size(), 3u);
}

TEST(Sampling, top_p_keeps_the_smallest_set_that_reaches_it) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits{std::log(0.125F), std::log(0.5F), std::log(0.125F), std::log(0.25F)};
  SamplingParameters p = warm(1);
  p.top_p = 0.4F;
  EXPECT_EQ(histogram(logits, p, 500).size(), 1u);
  p.top_p = 0.6F;
  auto counts = histogram(logits, p, 2'000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts[1] / 2'000.0, 2.0 / 3, 0.05);
  p.top_p = 0.8F;
  EXPECT_EQ(histogram(logits, p, 2'000).count(2), 0u);  // of the two equal ones the smaller id stays
  p.top_p = 1.0F;
  EXPECT_EQ(histogram(logits, p, 2'000).size(), 4u);
}

TEST(Sampling, top_p_works_past_its_first_sorted_piece) {
  const std::vector<float> logits(5'000, 1.0F);
  SamplingParameters p = warm(1);
  p.top_p = 0.5F;
  for (const auto& [token, count] : histogram(logits, p, 200)) EXPECT_LT(token, 2'501u);
}

TEST(Sampling, top_p_is_taken_of_what_top_k_left) {
  // After top-k of 2 both have probability 0.5, so 0.5 is reached by the first alone.
  SamplingParameters p = warm(1);
  p.top_k = 2;
  p.top_p = 0.49F;
  EXPECT_EQ(histogram({2, 2, 2, 2}, p, 500).size(), 1u);
}

TEST(Sampling, min_p_is_relative_to_the_most_likely) {
  const std::vector<float> logits{0.0F, std::log(0.6F), std::log(0.4F)};
  SamplingParameters p = warm(1);
  p.min_p = 0.5F;
  EXPECT_EQ(histogram(logits, p, 2'000).size(), 2u);
  p.top_p = 0.999F;
  EXPECT_EQ(histogram(logits, p, 2'000).size(), 2u);
  p.min_p = 1.0F;
  EXPECT_EQ(histogram(logits, p, 200).size(), 1u);
}

TEST(Sampling, a_tiny_temperature_is_greedy) { EXPECT_EQ(histogram({1, 2, 1.9F}, warm(1e-30F), 200).size(), 1u); }

}  // namespace
}  // namespace althing::gpu
