// See the header.
#include "monitoring/expert_figures.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace althing::monitoring {

LoadFigures load_figures(std::span<const std::uint64_t> tokens) {
  LoadFigures figures;
  const std::uint64_t sum = std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
  if (sum == 0) return figures;
  const double experts = static_cast<double>(tokens.size());
  figures.mean = static_cast<double>(sum) / experts;
  figures.largest = *std::max_element(tokens.begin(), tokens.end());
  figures.smallest = *std::min_element(tokens.begin(), tokens.end());
  figures.imbalance = static_cast<double>(figures.largest) / figures.mean;
  double squares = 0;
  for (const std::uint64_t count : tokens) {
    const double off = static_cast<double>(count) - figures.mean;
    squares += off * off;
    figures.idle += count == 0 ? 1 : 0;
    figures.hot += static_cast<double>(count) > hot_factor * figures.mean ? 1 : 0;
  }
  figures.sigma = std::sqrt(squares / experts);
  figures.cv = figures.sigma / figures.mean;
  return figures;
}

double top_share(std::span<const std::uint64_t> tokens, std::uint32_t count) {
  const std::uint64_t sum = std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
  if (sum == 0) return 0;
  std::vector<std::uint64_t> order(tokens.begin(), tokens.end());
  const auto top = order.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(count, order.size()));
  std::partial_sort(order.begin(), top, order.end(), std::greater<>());
  return static_cast<double>(std::accumulate(order.begin(), top, std::uint64_t{0})) / static_cast<double>(sum);
}

std::uint64_t expert_capacity(std::uint64_t tokens, std::uint32_t experts_per_token, std::uint32_t experts, double factor) {
  const double even = static_cast<double>(tokens) * experts_per_token / experts * factor;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(even)));
}

PaddingWaste padding_waste(std::span<const std::uint64_t> tokens, std::uint64_t capacity) {
  const LoadFigures figures = load_figures(tokens);
  const double whole = static_cast<double>(capacity);
  return {1 - static_cast<double>(figures.smallest) / whole, 1 - figures.mean / whole};
}

double expected_distinct(std::uint32_t experts, std::uint32_t experts_per_token, std::uint64_t tokens) {
  const double missed = 1 - static_cast<double>(experts_per_token) / experts;
  return experts * (1 - std::pow(missed, static_cast<double>(tokens)));
}

void SaturationForecast::add(double seconds, double ratio) {
  points_.push_back({seconds, ratio});
  if (points_.size() > points_max) points_.pop_front();
}

double SaturationForecast::minutes_until(double threshold, double now) const {
  constexpr double never = std::numeric_limits<double>::infinity();
  if (points_.empty()) return never;
  const double n = static_cast<double>(points_.size());
  double time = 0, ratio = 0;
  for (const Point& point : points_) time += point.seconds / n, ratio += point.ratio / n;
  double spread = 0, together = 0;
  for (const Point& point : points_) {
    spread += (point.seconds - time) * (point.seconds - time);
    together += (point.seconds - time) * (point.ratio - ratio);
  }
  if (points_.size() < points_min || spread <= 0) return ratio >= threshold ? 0 : never;
  const double slope = together / spread;
  double off = 0;
  for (const Point& point : points_) {
    const double error = point.ratio - ratio - slope * (point.seconds - time);
    off += error * error;
  }
  const double slope_error = std::sqrt(off / (n - 2) / spread);
  const bool rises = slope > 2 * slope_error && slope > 0;
  // What does not rise stands where its mean is.
  const double last = rises ? ratio + slope * (points_.back().seconds - time) : ratio;
  if (last >= threshold) return 0;
  if (!rises) return never;
  return std::max(0.0, (time + (threshold - ratio) / slope - now) / 60);
}

}  // namespace althing::monitoring
