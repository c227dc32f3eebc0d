// The recent past of experts and router: the last one to two buckets of steps. A bucket closes when the experts of a layer took
// bucket_tokens_per_expert tokens on average, so figures rest on enough tokens to mean something, whatever the traffic is. Time is an argument, and
// only the forecast knows it: its points are spaced by seconds, since it predicts in minutes. No lock, no metric library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "monitoring/expert_figures.hpp"
#include "monitoring/expert_totals.hpp"
#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::monitoring {

// Means over the tokens of the window; not a number before the first.
struct RouterMeans {
  double entropy_nats = 0;
  double logit_variance = 0;
  double top1_margin = 0;
  std::vector<double> gate_weight;  // by place
};

class ExpertWindow {
 public:
  static constexpr std::uint64_t bucket_tokens_per_expert = 128;
  static constexpr double forecast_seconds = 10;  // between two points of the forecast, at least

  explicit ExpertWindow(ExpertGrid grid);

  // REQUIRES: the step is of this grid; seconds do not fall.
  void add(const StepCounts& step, double seconds);
  // Tokens alone, (layers, experts), where counts do not come with steps.
  void add_tokens(std::span<const std::uint64_t> gained, double seconds);

  std::uint64_t buckets() const { return buckets_; }             // closed so far
  bool whole() const { return !closed_.expert_tokens.empty(); }  // it holds a whole bucket: only then is silence of an expert a sign
  std::vector<std::uint64_t> tokens() const;                     // (layers, experts)
  RouterMeans router(std::uint32_t layer) const;                 // REQUIRES: layer < layers
  double active_experts(std::uint32_t layer) const;              // mean number of experts that a step met; not a number before the first
  double saturation_minutes(std::uint32_t layer, double capacity_factor, double seconds) const;

 private:
  struct Bucket {
    std::vector<std::uint64_t> expert_tokens;  // (layers, experts)
    std::vector<RouterSums> router;            // by layer
    std::vector<std::uint64_t> gate_weights;   // (layers, places)
    std::vector<std::uint64_t> active;         // by layer: experts met, summed over steps
    std::uint64_t steps = 0;
    std::uint64_t taken = 0;  // tokens of all cells
  };

  Bucket fresh() const;
  void after(double seconds);
  std::uint64_t enough() const { return bucket_tokens_per_expert * grid_.experts * grid_.layers; }

  ExpertGrid grid_;
  Bucket closed_, current_;  // closed_ has no cells before the first whole bucket
  std::uint64_t buckets_ = 0;
  std::vector<std::uint64_t> since_point_;  // (layers, experts), of the forecast
  std::uint64_t taken_since_point_ = 0;
  double point_seconds_ = 0;
  bool timed_ = false;
  std::vector<SaturationForecast> forecasts_;  // by layer
};

}  // namespace althing::monitoring
