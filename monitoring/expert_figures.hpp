// Figures of how experts are loaded, as pure functions of token counts. Each has a test with numbers computed by hand.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

namespace althing::monitoring {

// Of one layer's tokens by expert. Without tokens everything is 0.
struct LoadFigures {
  double mean = 0;
  double sigma = 0;        // of the experts as a whole population
  double cv = 0;           // sigma / mean
  double imbalance = 0;    // largest / mean; 1 is perfect
  std::uint32_t idle = 0;  // experts without a token
  std::uint32_t hot = 0;   // experts with more than hot_factor x mean
  std::uint64_t largest = 0;
  std::uint64_t smallest = 0;
};
inline constexpr double hot_factor = 2.0;
LoadFigures load_figures(std::span<const std::uint64_t> tokens);

// Part of all tokens that went to the `count` experts with most.
double top_share(std::span<const std::uint64_t> tokens, std::uint32_t count);

// Tokens an expert may take of a batch: tokens x k / experts x factor, rounded up, at least 1.
std::uint64_t expert_capacity(std::uint64_t tokens, std::uint32_t experts_per_token, std::uint32_t experts, double factor);

// What of `capacity` stays empty at the expert with fewest tokens, and at the mean one; below 0 where it overflows.
struct PaddingWaste {
  double of_smallest = 0;
  double of_mean = 0;
};
PaddingWaste padding_waste(std::span<const std::uint64_t> tokens, std::uint64_t capacity);

// Distinct experts that a step of so many tokens meets, were choices even and independent: N (1 - (1 - k/N)^tokens).
double expected_distinct(std::uint32_t experts, std::uint32_t experts_per_token, std::uint64_t tokens);

// When the hottest expert's load, as a multiple of the mean, will pass a threshold: a straight line through the last points. A slope below twice its
// standard error is no rise, so that the noise of counts warns nobody.
class SaturationForecast {
 public:
  static constexpr std::size_t points_max = 32;
  static constexpr std::size_t points_min = 4;

  // REQUIRES: seconds do not fall.
  void add(double seconds, double ratio);
  // 0 when it is there already, infinity when it does not rise or too little is known. REQUIRES: now >= the last point's time.
  double minutes_until(double threshold, double now) const;

 private:
  struct Point {
    double seconds, ratio;
  };
  std::deque<Point> points_;
};

}  // namespace althing::monitoring
