// The recent past: it forgets, it waits for enough tokens, its means are those of the tokens in it, and a load that rises is foreseen.
#include "monitoring/expert_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/monitoring/expert_samples.hpp"

namespace althing::monitoring {
namespace {

using testing::ElementsAre;
constexpr auto bucket = static_cast<std::uint32_t>(ExpertWindow::bucket_tokens_per_expert);
constexpr double never = std::numeric_limits<double>::infinity();

TEST(ExpertWindow, forgets_old_traffic) {
  ExpertWindow window({1, 1, 2, 1});
  EXPECT_FALSE(window.whole());
  window.add(tests::step_of({{2 * bucket, 0}}, 1), 0);
  EXPECT_TRUE(window.whole());
  EXPECT_THAT(window.tokens(), ElementsAre(2 * bucket, 0));
  window.add(tests::step_of({{0, bucket}}, 1), 0);
  EXPECT_THAT(window.tokens(), ElementsAre(2 * bucket, bucket)) << "the closed bucket and the open one";
  window.add(tests::step_of({{0, bucket}}, 1), 0);
  EXPECT_THAT(window.tokens(), ElementsAre(0, 2 * bucket));
  EXPECT_EQ(window.buckets(), 2u);
}

TEST(ExpertWindow, polled_tokens_fill_it_too) {
  ExpertWindow window({1, 1, 2, 1});
  const std::vector<std::uint64_t> gained{3 * bucket, bucket};
  window.add_tokens(gained, 0);
  EXPECT_TRUE(window.whole());
  EXPECT_THAT(window.tokens(), ElementsAre(3 * bucket, bucket));
  EXPECT_TRUE(std::isnan(window.router(0).entropy_nats)) << "polled counts say nothing of the router";
}

TEST(ExpertWindow, router_figures_are_means_over_tokens_of_both_buckets) {
  ExpertWindow window({1, 1, 2, 2});
  EXPECT_TRUE(std::isnan(window.router(0).entropy_nats));
  EXPECT_TRUE(std::isnan(window.active_experts(0)));
  const auto unit = static_cast<std::uint64_t>(router_figure_unit), weight = static_cast<std::uint64_t>(gate_weight_unit);
  StepCounts step = tests::step_of({{bucket, bucket}}, 2);
  step.layers[0].router = {bucket, bucket * unit / 2, bucket * unit * 3, bucket * unit};
  step.layers[0].gate_weights = {bucket * weight / 4 * 3, bucket * weight / 4};
  window.add(step, 0);
  ASSERT_TRUE(window.whole());
  step.layers[0].router.entropy = 0;  // the next bucket's tokens were sure
  step.layers[0].experts.pop_back();  // and all at one expert
  step.layers[0].experts[0].tokens = 2 * bucket;
  step.tokens = bucket;
  ExpertWindow half = window;
  step.layers[0].router.tokens = bucket;
  half.add(step, 0);
  EXPECT_DOUBLE_EQ(window.router(0).entropy_nats, 0.5);
  EXPECT_DOUBLE_EQ(window.router(0).logit_variance, 3);
  EXPECT_DOUBLE_EQ(window.router(0).top1_margin, 1);
  EXPECT_THAT(window.router(0).gate_weight, ElementsAre(0.75, 0.25));
  EXPECT_DOUBLE_EQ(window.active_experts(0), 2);
  EXPECT_DOUBLE_EQ(half.router(0).entropy_nats, 0) << "that step closed a bucket of its own";
  EXPECT_DOUBLE_EQ(half.active_experts(0), 1);
}

TEST(ExpertWindow, tokens_without_finite_logits_are_not_in_the_means) {
  ExpertWindow window({1, 1, 2, 1});
  StepCounts step = tests::step_of({{2, 2}}, 1);
  step.layers[0].router = {1, static_cast<std::uint64_t>(router_figure_unit), 0, 0};
  step.layers[0].gate_weights = {static_cast<std::uint64_t>(gate_weight_unit)};
  window.add(step, 0);
  EXPECT_DOUBLE_EQ(window.router(0).entropy_nats, 1);
  EXPECT_THAT(window.router(0).gate_weight, ElementsAre(1));
}

// The figure against the formula: N (1 - (1 - k/N)^B) for even and independent choices.
TEST(ExpertWindow, active_experts_of_even_traffic_are_those_expected) {
  for (const std::uint32_t batch : {1u, 2u, 8u, 32u}) {
    std::mt19937 random(batch);
    ExpertWindow window({1, 1, 16, 2});
    double met = 0;
    constexpr int steps = 800;
    for (int i = 0; i < steps; ++i) {
      const StepCounts step = tests::random_step(random, 1, 16, 2, batch);
      window.add(step, 0);
      met += static_cast<double>(step.layers[0].experts.size());
    }
    EXPECT_NEAR(met / steps, expected_distinct(16, 2, batch), 0.12) << batch;
    EXPECT_NEAR(window.active_experts(0), expected_distinct(16, 2, batch), 0.6) << "over the window's fewer steps, batch " << batch;
  }
}

TEST(ExpertWindow, an_expert_is_active_once_however_many_copies_it_has) {
  ExpertWindow window({2, 1, 2, 1});
  StepCounts step = tests::step_of({{4, 1}}, 1);
  step.layers[0].experts[0].tokens = 2;
  step.layers[0].experts.insert(step.layers[0].experts.begin() + 1, {0, 1, 2, 0});
  window.add(step, 0);
  EXPECT_DOUBLE_EQ(window.active_experts(0), 2);
  EXPECT_THAT(window.tokens(), ElementsAre(4, 1));
}

// One expert's share rises from the mean to 1.5 times the mean within 50 minutes: it passes 1.25 after 25. The forecast must say so a good while
// before, and never of the layer beside it, whose load stays as it is.
TEST(ExpertWindow, a_rising_load_is_foreseen_before_it_saturates) {
  ExpertWindow window({1, 2, 8, 1});
  double warned_at = never, saturated_at = never;
  for (int i = 0; i * 10 <= 50 * 60; ++i) {
    const double seconds = i * 10.0, minutes = seconds / 60;
    const auto hot = static_cast<std::uint32_t>(std::lround(100'000 * (1 + 0.5 * minutes / 50)));
    const std::uint32_t rest = (800'000 - hot) / 7;
    const std::vector<std::uint32_t> rising{hot + (800'000 - hot) % 7, rest, rest, rest, rest, rest, rest, rest};
    window.add(tests::step_of({rising, std::vector<std::uint32_t>(8, 100'000)}, 1), seconds);
    const double left = window.saturation_minutes(0, 1.25, seconds);
    if (left <= 12 && warned_at == never) warned_at = minutes;
    if (hot > 125'000 && saturated_at == never) saturated_at = minutes;
    if (minutes > 10 && minutes < 24) {
      EXPECT_NEAR(left, 25 - minutes, 0.5) << "at minute " << minutes;
    }
    EXPECT_EQ(window.saturation_minutes(1, 1.25, seconds), never);
  }
  EXPECT_NEAR(saturated_at, 25, 0.5) << "the replay must saturate, or it shows nothing";
  EXPECT_LT(warned_at, saturated_at - 11) << "warned at " << warned_at;
  EXPECT_EQ(window.saturation_minutes(0, 1.25, 3000), 0) << "it is saturated now";
}

TEST(ExpertWindow, the_forecast_waits_for_time_and_for_tokens) {
  ExpertWindow window({1, 1, 2, 1});
  for (int i = 0; i < 50; ++i) window.add(tests::step_of({{400 + 4u * static_cast<std::uint32_t>(i), 100}}, 1), 0.1 * i);
  EXPECT_EQ(window.saturation_minutes(0, 1.99, 5), never) << "five seconds are no trend";
  for (int i = 0; i < 50; ++i) window.add(tests::step_of({{1, 0}}, 1), 5 + 100.0 * i);
  EXPECT_EQ(window.saturation_minutes(0, 1.99, 5000), never) << "a token now and then is no load";
}

}  // namespace
}  // namespace althing::monitoring
