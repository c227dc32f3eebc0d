// See traffic_window.hpp.
#include "monitoring/traffic_window.hpp"

#include <utility>

namespace althing::monitoring {

std::optional<double> quantile(const std::vector<double>& bounds, const std::vector<std::uint64_t>& cumulative, double q) {
  if (bounds.empty() || cumulative.size() != bounds.size() + 1 || cumulative.back() == 0) return std::nullopt;
  const double wanted = q * static_cast<double>(cumulative.back());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto up_to = static_cast<double>(cumulative[i]);
    if (up_to < wanted || cumulative[i] == 0) continue;
    const double lower = i == 0 ? 0 : bounds[i - 1];
    const double below = i == 0 ? 0 : static_cast<double>(cumulative[i - 1]);
    return up_to == below ? bounds[i] : lower + (bounds[i] - lower) * (wanted - below) / (up_to - below);
  }
  return bounds.back();
}

void TrafficWindow::add(double now, Traffic traffic) {
  samples_.push_back({now, std::move(traffic)});
  // The one before the window is where differences begin.
  while (samples_.size() > 2 && samples_[1].time <= now - latency_seconds) samples_.pop_front();
}

double TrafficWindow::rate(std::uint64_t Traffic::*counter) const {
  if (samples_.size() < 2) return 0;
  const Sample& last = samples_.back();
  std::size_t first = samples_.size() - 2;
  while (first > 0 && samples_[first].time > last.time - rate_seconds) --first;
  const double seconds = last.time - samples_[first].time;
  return seconds > 0 ? static_cast<double>(last.traffic.*counter - samples_[first].traffic.*counter) / seconds : 0;
}

Latency TrafficWindow::latency(BucketCounts Traffic::*buckets) const {
  Latency latency;
  if (samples_.size() < 2) return latency;
  const BucketCounts& first = samples_.front().traffic.*buckets;
  const BucketCounts& last = samples_.back().traffic.*buckets;
  if (last.bounds.empty() || first.cumulative.size() != last.cumulative.size()) return latency;
  std::vector<std::uint64_t> gained;
  for (std::size_t i = 0; i < last.cumulative.size(); ++i) gained.push_back(last.cumulative[i] - first.cumulative[i]);
  latency.count = gained.back();
  latency.p50 = quantile(last.bounds, gained, 0.50);
  latency.p95 = quantile(last.bounds, gained, 0.95);
  latency.p99 = quantile(last.bounds, gained, 0.99);
  latency.bound = last.bounds.back();
  return latency;
}

double TrafficWindow::prompt_rate() const { return rate(&Traffic::prompt_tokens); }
double TrafficWindow::generated_rate() const { return rate(&Traffic::generated_tokens); }
Latency TrafficWindow::first_token() const { return latency(&Traffic::first_token); }
Latency TrafficWindow::inter_token() const { return latency(&Traffic::inter_token); }

}  // namespace althing::monitoring
