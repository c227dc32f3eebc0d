// Draws: greedy ties, filters, the distribution, and the pinned key function that every sampled stream depends on.
#include "gpu/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
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

// Bits of these tokens.
std::vector<std::uint32_t> mask_of(const std::vector<TokenId>& tokens, std::size_t vocabulary) {
  std::vector<std::uint32_t> words(mask_words(static_cast<std::uint32_t>(vocabulary)), 0);
  for (const TokenId token : tokens) words[token / 32] |= 1u << (token % 32);
  return words;
}

TEST(Sampling, a_mask_leaves_the_other_tokens_out) {
  const std::vector<float> logits{9, 1, 8, 1};
  EXPECT_EQ(draw(logits, {}, 0, mask_of({1, 3}, 4)), 1u) << "the smaller id among equals";
  EXPECT_EQ(draw(logits, {}, 0, mask_of({2, 3}, 4)), 2u);
  EXPECT_FALSE(draw(std::vector<float>{NAN, 1}, {}, 0, mask_of({1}, 2)).has_value()) << "what is not legal must be finite too";
  for (const SamplingParameters& p : {warm(1),
                                      [] {
                                        auto q = warm(1);
                                        q.top_p = 0.5F;
                                        return q;
                                      }(),
                                      [] {
                                        auto q = warm(1);
                                        q.top_k = 3;
                                        return q;
                                      }(),
                                      [] {
                                        auto q = warm(1);
                                        q.min_p = 0.9F;
                                        return q;
                                      }()})
    for (std::uint32_t position = 0; position < 200; ++position) EXPECT_EQ(draw(logits, p, position, mask_of({3}, 4)), 3u);
}

// Draws under a mask are those from logits that hold the legal tokens alone: the same noise, and what filters keep is renormalised.
TEST(Sampling, a_mask_draws_from_what_is_left_as_if_nothing_else_had_been) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(100);
    for (float& logit : logits) logit = normal(random);
    std::vector<TokenId> legal;
    for (TokenId token = 0; token < logits.size(); ++token)
      if (random() % 3 == 0) legal.push_back(token);
    if (legal.empty()) continue;
    SamplingParameters p = warm(round % 4 == 0 ? 0.0F : 1.3F, random());
    if (round % 3 == 1) p.top_p = 0.7F;
    if (round % 5 == 1) p.top_k = 4;
    if (round % 7 == 1) p.min_p = 0.2F;
    // So unlikely that no filter and no noise finds it, and finite.
    std::vector<float> pushed_down(logits.size(), -3e38F);
    for (const TokenId token : legal) pushed_down[token] = logits[token];
    const auto words = mask_of(legal, logits.size());
    const auto drawn = draw(logits, p, 17, words);
    ASSERT_EQ(drawn, draw(pushed_down, p, 17)) << "round " << round;
    ASSERT_TRUE(is_legal(words, *drawn));
    const TokenLogprobs told = logprobs_of(logits, *drawn, 20, words), expected = logprobs_of(pushed_down, *drawn, 20);
    EXPECT_EQ(told.logprob, expected.logprob);
    ASSERT_EQ(told.top.size(), std::min<std::size_t>(20, legal.size()));
    for (std::size_t i = 0; i < told.top.size(); ++i) EXPECT_EQ(told.top[i].token, expected.top[i].token);
  }
}

TEST(Sampling, masks_come_back_from_their_bytes_in_either_form) {
  std::mt19937 random(6);
  for (const std::uint32_t vocabulary : {1u, 31u, 32u, 33u, 1000u, 201'088u})
    for (const std::uint32_t one_in : {1u, 2u, 50u, 100'000u}) {
      std::vector<TokenId> legal{vocabulary - 1};
      for (TokenId token = 0; token + 1 < vocabulary; ++token)
        if (random() % one_in == 0) legal.push_back(token);
      const auto words = mask_of(legal, vocabulary);
      const std::string bytes = encode_mask(words);
      EXPECT_LE(bytes.size(), 1 + 4 * mask_words(vocabulary));
      const auto back = decode_mask(bytes, vocabulary);
      ASSERT_TRUE(back);
      EXPECT_EQ(*back, words);
    }
  const std::string none = encode_mask(std::vector<std::uint32_t>{0, 0});
  EXPECT_FALSE(decode_mask(none, 64)) << "no token is legal";
  EXPECT_FALSE(decode_mask("", 64));
  EXPECT_FALSE(decode_mask("x123", 64));
  EXPECT_FALSE(decode_mask(encode_mask(mask_of({63}, 64)), 63)) << "beyond the vocabulary";
  EXPECT_FALSE(decode_mask(std::string("b") + std::string(8, '\xFF'), 63));
  EXPECT_FALSE(decode_mask(std::string("b") + std::string(8, '\xFF'), 200)) << "of another vocabulary";
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

// The obvious way, in the same arithmetic: token by token, from the text itself and not from counts that were kept.
std::vector<float> adjusted_plainly(std::vector<float> logits, const SamplingParameters& p, const std::vector<TokenId>& prompt,
                                    const std::vector<TokenId>& output) {
  for (TokenId token = 0; token < logits.size(); ++token) {
    const auto in_output = static_cast<double>(std::count(output.begin(), output.end(), token));
    const bool seen = in_output > 0 || std::count(prompt.begin(), prompt.end(), token) > 0;
    double logit = logits[token];
    if (seen && logit > 0) logit /= p.repetition_penalty;
    if (seen && logit <= 0) logit *= p.repetition_penalty;
    if (in_output > 0) logit = logit - p.frequency_penalty * in_output - p.presence_penalty;
    logits[token] = static_cast<float>(logit);
    for (const TokenBias& entry : p.logit_bias)
      if (entry.token == token) logits[token] += entry.bias;
  }
  return logits;
}

TEST(Adjust, penalties_and_biases_are_what_the_text_says) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(40);
    for (float& logit : logits) logit = below(8) == 0 ? 0.0F : normal(random);
    SamplingParameters p;
    if (below(3) > 0) p.repetition_penalty = 0.3F + static_cast<float>(below(100)) / 20;
    if (below(3) > 0) p.presence_penalty = static_cast<float>(below(41)) / 10 - 2;
    if (below(3) > 0) p.frequency_penalty = static_cast<float>(below(41)) / 10 - 2;
    for (TokenId token = below(9); token < 45; token += 1 + below(12)) p.logit_bias.push_back({token, normal(random)});
    std::vector<TokenId> prompt(below(20)), output(below(20));
    for (auto* text : {&prompt, &output})
      for (TokenId& token : *text) token = below(44);  // also some that no logit is of
    std::vector<TokenId> text = prompt;
    text.insert(text.end(), output.begin(), output.end());
    // All at once, and as a row that was set after half of the output goes on.
    const auto half = static_cast<std::ptrdiff_t>(output.size() / 2);
    const std::span<const TokenId> all(text);
    SeenTokens later(all.first(prompt.size() + static_cast<std::size_t>(half)), static_cast<std::uint32_t>(prompt.size()));
    for (auto token = output.begin() + half; token != output.end(); ++token) later.add_output(*token);
    const SeenTokens at_once(text, static_cast<std::uint32_t>(prompt.size()));
    EXPECT_EQ(at_once.length(), text.size());
    EXPECT_EQ(later.length(), text.size());
    const std::vector<float> expected = adjusted_plainly(logits, p, prompt, output);
    for (const SeenTokens* seen : {&at_once, static_cast<const SeenTokens*>(&later)}) {
      std::vector<float> mine = logits;
      adjust(mine, p, seen->list());
      EXPECT_EQ(mine, expected) << "round " << round;
    }
  }
}

TEST(Adjust, nothing_asked_for_changes_nothing) {
  std::vector<float> logits{1, -2, 0, 3};
  const std::vector<float> before = logits;
  adjust(logits, {}, SeenTokens(std::vector<TokenId>{1, 2}, 1).list());
  EXPECT_EQ(logits, before);
}

TEST(Adjust, finite_logits_stay_finite_and_broken_ones_broken) {
  SamplingParameters p;
  p.repetition_penalty = std::numeric_limits<float>::min();
  p.presence_penalty = 2;
  p.logit_bias = {{0, 100}, {1, -100}};
  const SeenTokens seen(std::vector<TokenId>{0, 1, 2, 3, 4, 5}, 2);
  std::vector<float> logits{20, -20, 3e38F, NAN, INFINITY, -INFINITY};
  adjust(logits, p, seen.list());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isfinite(logits[i])) << i;
  for (std::size_t i = 3; i < 6; ++i) EXPECT_FALSE(std::isfinite(logits[i])) << i;
  EXPECT_EQ(draw(std::span<const float>(logits).first(3), {}, 0), 0u);
  const TokenLogprobs told = logprobs_of(std::span<const float>(logits).first(3), 0, 3);
  for (const TokenLogprob& likely : told.top) EXPECT_TRUE(std::isfinite(likely.logprob)) << likely.token;
}

TEST(Logprobs, are_those_of_the_softmax_and_fall) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(500);
  for (float& logit : logits) logit = normal(random);
  logits[7] = logits[400] = 12;  // equal ones: the smaller id first
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  const TokenLogprobs told = logprobs_of(logits, 33, 20);
  EXPECT_EQ(told.token, 33u);
  EXPECT_NEAR(told.logprob, static_cast<double>(logits[33] - std::log(sum)), 1e-6);
  ASSERT_EQ(told.top.size(), 20u);
  EXPECT_EQ(told.top[0].token, 7u);
  EXPECT_EQ(told.top[1].token, 400u);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(told.top[i].logprob, static_cast<double>(logits[told.top[i].token] - std::log(sum)), 1e-6);
    if (i > 0) {
      EXPECT_GE(told.top[i - 1].logprob, told.top[i].logprob);
    }
  }
  double all = 0;
  for (TokenId token = 0; token < logits.size(); ++token) all += std::exp(static_cast<double>(logprobs_of(logits, token, 0).logprob));
  EXPECT_NEAR(all, 1.0, 1e-5);
  EXPECT_TRUE(logprobs_of(logits, 33, 0).top.empty());
  EXPECT_EQ(logprobs_of(std::vector<float>{1, 2}, 0, 20).top.size(), 2u) << "no more than there are";
}

TEST(Logprobs, bytes_come_back_and_damaged_ones_are_refused) {
  const std::vector<RequestLogprobs> told = {{RequestId{~0ULL}, {7, -0.5F, {{7, -0.5F}, {9, -1.5F}}}}, {RequestId{2}, {5, -3.0F, {}}}};
  std::string bytes;
  for (const RequestLogprobs& one : told) append_logprobs(bytes, one);
  const auto back = read_logprobs(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, told);
  EXPECT_TRUE(read_logprobs("").value().empty());
  for (std::size_t length = 1; length < bytes.size(); ++length) EXPECT_EQ(read_logprobs(bytes.substr(0, length)).ok(), length == 24 + 16) << length;
  bytes[16] = 21;  // more than can be asked for
  EXPECT_FALSE(read_logprobs(bytes + std::string(1000, 0)).ok());
}

TEST(Sampling, a_tiny_temperature_is_greedy) { EXPECT_EQ(histogram({1, 2, 1.9F}, warm(1e-30F), 200).size(), 1u); }

}  // namespace
}  // namespace althing::gpu
