// Figures of load against numbers computed by hand.
#include "monitoring/expert_figures.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/monitoring/expert_samples.hpp"

namespace althing::monitoring {
namespace {

using Loads = std::vector<std::uint64_t>;
constexpr double never = std::numeric_limits<double>::infinity();

// Two layers of four experts, 100 tokens each.
const Loads uneven{40, 10, 30, 20};
const Loads broken{0, 0, 90, 10};

TEST(ExpertFigures, a_matrix_of_two_layers_and_four_experts_by_hand) {
  const LoadFigures first = load_figures(uneven);
  EXPECT_DOUBLE_EQ(first.mean, 25);
  EXPECT_DOUBLE_EQ(first.sigma, std::sqrt(125.0));  // (15^2 + 15^2 + 5^2 + 5^2) / 4
  EXPECT_DOUBLE_EQ(first.cv, std::sqrt(125.0) / 25);
  EXPECT_DOUBLE_EQ(first.imbalance, 1.6);
  EXPECT_EQ(first.idle, 0u);
  EXPECT_EQ(first.hot, 0u);
  EXPECT_EQ(first.largest, 40u);
  EXPECT_EQ(first.smallest, 10u);
  const LoadFigures second = load_figures(broken);
  EXPECT_DOUBLE_EQ(second.sigma, std::sqrt(1425.0));  // (25^2 + 25^2 + 65^2 + 15^2) / 4
  EXPECT_DOUBLE_EQ(second.imbalance, 3.6);
  EXPECT_EQ(second.idle, 2u);
  EXPECT_EQ(second.hot, 1u) << "90 is over 2 x 25";
  EXPECT_DOUBLE_EQ(top_share(uneven, 1), 0.4);
  EXPECT_DOUBLE_EQ(top_share(uneven, 2), 0.7);
  EXPECT_DOUBLE_EQ(top_share(uneven, 8), 1.0) << "more than there are";
  EXPECT_DOUBLE_EQ(top_share(broken, 1), 0.9);
}

TEST(ExpertFigures, twice_the_mean_exactly_is_not_hot) {
  EXPECT_EQ(load_figures(Loads{50, 0, 25, 25}).hot, 0u);
  EXPECT_EQ(load_figures(Loads{51, 0, 25, 25}).hot, 1u);
}

TEST(ExpertFigures, without_tokens_all_is_0) {
  const LoadFigures none = load_figures(Loads{0, 0});
  EXPECT_EQ(none.imbalance, 0);
  EXPECT_EQ(none.cv, 0);
  EXPECT_EQ(none.idle, 0u);
  EXPECT_EQ(top_share(Loads{0, 0}, 1), 0);
  EXPECT_EQ(load_figures({}).mean, 0);
}

TEST(ExpertFigures, capacity_is_the_even_share_times_the_factor_rounded_up) {
  EXPECT_EQ(expert_capacity(32 * 1024, 2, 16, 1.25), 5120u);
  EXPECT_EQ(expert_capacity(8192, 2, 16, 1.25), 1280u);
  EXPECT_EQ(expert_capacity(131072, 2, 16, 1.25), 20480u);
  EXPECT_EQ(expert_capacity(1, 2, 16, 1.25), 1u) << "0.16 of a token is room for one";
  EXPECT_EQ(expert_capacity(100, 1, 3, 1.0), 34u);
}

TEST(ExpertFigures, padding_wastes_what_of_the_capacity_stays_empty) {
  const PaddingWaste capped = padding_waste(Loads{5120, 3892}, 5120);
  EXPECT_NEAR(capped.of_smallest, 0.2398, 5e-5);  // the 24 % of a batch of 128
  EXPECT_DOUBLE_EQ(capped.of_mean, 1 - 4506.0 / 5120);
  const PaddingWaste even = padding_waste(uneven, expert_capacity(100, 1, 4, 1.25));  // 32
  EXPECT_DOUBLE_EQ(even.of_smallest, 1 - 10.0 / 32);
  EXPECT_DOUBLE_EQ(even.of_mean, 1 - 25.0 / 32);
  EXPECT_LT(padding_waste(Loads{40, 40}, 32).of_smallest, 0) << "an overflow is no waste";
}

TEST(ExpertFigures, expected_distinct_experts_of_two_of_sixteen) {
  const std::array<std::uint64_t, 6> batch{1, 2, 4, 8, 16, 32};
  const std::array<double, 6> expected{2, 3.75, 6.6, 10.5, 14.1, 15.8};
  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_NEAR(expected_distinct(16, 2, batch[i]), expected[i], 0.05) << batch[i];
  EXPECT_EQ(expected_distinct(128, 4, 0), 0);
}

TEST(SaturationForecast, a_line_is_followed_to_the_threshold) {
  SaturationForecast forecast;
  for (int i = 0; i <= 20; ++i) forecast.add(i * 30.0, 1.0 + 0.01 * i);  // 0.02 a minute, 1.2 after ten minutes
  EXPECT_NEAR(forecast.minutes_until(1.25, 600), 2.5, 1e-9);
  EXPECT_NEAR(forecast.minutes_until(1.25, 660), 1.5, 1e-9) << "time goes on without new points";
  EXPECT_EQ(forecast.minutes_until(1.2, 600), 0);
  EXPECT_EQ(forecast.minutes_until(1.1, 600), 0) << "passed already";
}

TEST(SaturationForecast, what_does_not_rise_never_saturates_unless_it_has) {
  SaturationForecast level, falling, high, empty;
  for (int i = 0; i < 10; ++i) level.add(i, 1.1), falling.add(i, 1.2 - 0.01 * i), high.add(i, 1.5);
  EXPECT_EQ(level.minutes_until(1.25, 10), never);
  EXPECT_EQ(falling.minutes_until(1.25, 10), never);
  EXPECT_EQ(high.minutes_until(1.25, 10), 0);
  EXPECT_EQ(empty.minutes_until(1.25, 10), never);
}

TEST(SaturationForecast, too_few_points_are_no_line) {
  SaturationForecast forecast;
  for (int i = 0; i < 3; ++i) forecast.add(i, 1.0 + 0.05 * i);
  EXPECT_EQ(forecast.minutes_until(1.25, 3), never);
  forecast.add(3, 1.15);
  EXPECT_LT(forecast.minutes_until(1.25, 3), 1);
}

TEST(SaturationForecast, only_the_last_points_count) {
  SaturationForecast forecast;
  for (int i = 0; i < 40; ++i) forecast.add(i * 10.0, 1.0 + 0.01 * i);
  for (std::size_t i = 0; i < SaturationForecast::points_max; ++i) forecast.add(400.0 + 10.0 * static_cast<double>(i), 1.1);
  EXPECT_EQ(forecast.minutes_until(1.25, 800), never) << "the rise is over";
}

// Loads of an even router differ by chance alone: nobody must be woken for that.
TEST(SaturationForecast, noise_does_not_warn) {
  std::mt19937 random(3);
  SaturationForecast forecast;
  double nearest = never;
  for (int minute = 0; minute < 360; ++minute) {
    const double seconds = minute * 10.0;
    Loads loads(8);
    for (int token = 0; token < 20'000; ++token) ++loads[random() % 8];
    forecast.add(seconds, load_figures(loads).imbalance);
    nearest = std::min(nearest, forecast.minutes_until(1.25, seconds));
  }
  EXPECT_GT(nearest, 12) << "an hour of even traffic";
}

}  // namespace
}  // namespace althing::monitoring
