// The router: top-k by logit with the smaller id among equals, softmax over the chosen, sane for every input.
#include "gpu/cpu/router.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace althing::gpu::cpu {
namespace {

TEST(Router, agrees_with_a_stable_sort_in_double_precision) {
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    const std::size_t experts = 1 + random() % 130, k = 1 + random() % std::min<std::size_t>(experts, 8);
    std::vector<float> logits(experts);
    for (float& logit : logits) logit = static_cast<float>(random() % 40) / 7.0F - 3.0F;  // many ties
    std::vector<std::uint32_t> chosen(k), order(experts);
    std::vector<float> weights(k);
    choose_experts(logits, chosen, weights);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
    order.resize(k);
    ASSERT_EQ(chosen, order);
    double sum = 0;
    for (const std::uint32_t e : order) sum += std::exp(double{logits[e]});
    for (std::size_t i = 0; i < k; ++i) ASSERT_NEAR(weights[i], std::exp(double{logits[order[i]]}) / sum, 1e-6);
  }
}

TEST(Router, nan_and_infinity_still_choose_distinct_experts) {
  for (const std::vector<float>& logits : {std::vector<float>(6, NAN), std::vector<float>(6, -INFINITY), std::vector<float>(6, INFINITY),
                                           std::vector<float>{1, NAN, INFINITY, 2, -INFINITY, NAN}}) {
    std::vector<std::uint32_t> chosen(4);
    std::vector<float> weights(4);
    choose_experts(logits, chosen, weights);
    EXPECT_EQ(std::set<std::uint32_t>(chosen.begin(), chosen.end()).size(), 4u);
    EXPECT_LT(*std::max_element(chosen.begin(), chosen.end()), 6u);
    EXPECT_TRUE(std::any_of(weights.begin(), weights.end(), [](float w) { return std::isnan(w); }));
  }
}

TEST(RouterFigures, of_four_logits_by_hand) {
  const RouterFigures even = router_figures(std::vector<float>{2, 2, 2, 2});
  EXPECT_NEAR(even.entropy, std::log(4.0), 1e-7);
  EXPECT_EQ(even.variance, 0);
  EXPECT_EQ(even.margin, 0);
  // Weights 1, 1/2, 1/4, 1/4 of 2.
  const RouterFigures halves = router_figures(std::vector<float>{5, 5 - 0.693147181F, 5 - 2 * 0.693147181F, 5 - 2 * 0.693147181F});
  EXPECT_NEAR(halves.entropy, 1.75 * std::log(2.0) - 0.0, 1e-6) << "1/2 of one bit, 1/4 of two, 1/8 of three twice";
  EXPECT_NEAR(halves.margin, std::log(2.0), 1e-6);
  const RouterFigures one = router_figures(std::vector<float>{1, 3, -1, 1});
  EXPECT_NEAR(one.variance, 2.0, 1e-12);  // mean 1; 0 + 4 + 4 + 0
  EXPECT_NEAR(one.margin, 2.0, 1e-12);
  EXPECT_EQ(router_figures(std::vector<float>{7}).margin, 0) << "an expert alone";
  EXPECT_NEAR(router_figures(std::vector<float>(128, -3)).entropy, std::log(128.0), 1e-6);
}

TEST(RouterFigures, are_not_finite_when_a_logit_is_not) {
  EXPECT_TRUE(router_figures(std::vector<float>{1, 2, -80, 1e30F}).finite());
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<float> logits{1, 2, 3};
      logits[at] = bad;
      EXPECT_FALSE(router_figures(logits).finite()) << bad << " at " << at;
    }
}

}  // namespace
}  // namespace althing::gpu::cpu
