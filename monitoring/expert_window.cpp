// See the header.
#include "monitoring/expert_window.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace althing::monitoring {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

ExpertWindow::ExpertWindow(ExpertGrid grid) : grid_(grid), current_(fresh()), since_point_(current_.expert_tokens.size()), forecasts_(grid.layers) {}

ExpertWindow::Bucket ExpertWindow::fresh() const {
  Bucket bucket;
  bucket.expert_tokens.resize(std::size_t{grid_.layers} * grid_.experts);
  bucket.router.resize(grid_.layers);
  bucket.gate_weights.resize(std::size_t{grid_.layers} * grid_.experts_per_token);
  bucket.active.resize(grid_.layers);
  return bucket;
}

void ExpertWindow::add(const StepCounts& step, double seconds) {
  for (std::size_t l = 0; l < step.layers.size(); ++l) {
    const LayerCounts& layer = step.layers[l];
    std::uint32_t before = std::numeric_limits<std::uint32_t>::max();
    for (const ExpertCount& count : layer.experts) {
      current_.expert_tokens[l * grid_.experts + count.expert] += count.tokens;
      since_point_[l * grid_.experts + count.expert] += count.tokens;
      current_.active[l] += count.expert == before ? 0 : 1;  // copies of an expert stand side by side
      before = count.expert;
    }
    RouterSums& sums = current_.router[l];
    sums.tokens += layer.router.tokens;
    sums.entropy += layer.router.entropy;
    sums.variance += layer.router.variance;
    sums.margin += layer.router.margin;
    for (std::size_t place = 0; place < layer.gate_weights.size(); ++place)
      current_.gate_weights[l * grid_.experts_per_token + place] += layer.gate_weights[place];
  }
  const std::uint64_t taken = std::uint64_t{step.tokens} * step.experts_per_token * step.layers.size();
  ++current_.steps;
  current_.taken += taken;
  taken_since_point_ += taken;
  after(seconds);
}

void ExpertWindow::add_tokens(std::span<const std::uint64_t> gained, double seconds) {
  for (std::size_t cell = 0; cell < gained.size(); ++cell) {
    current_.expert_tokens[cell] += gained[cell];
    since_point_[cell] += gained[cell];
    current_.taken += gained[cell];
    taken_since_point_ += gained[cell];
  }
  after(seconds);
}

void ExpertWindow::after(double seconds) {
  if (current_.taken >= enough() && current_.taken > 0) {
    closed_ = std::exchange(current_, fresh());
    ++buckets_;
  }
  if (!std::exchange(timed_, true)) point_seconds_ = seconds;
  if (seconds - point_seconds_ < forecast_seconds || taken_since_point_ < enough() || taken_since_point_ == 0) return;
  for (std::uint32_t l = 0; l < grid_.layers; ++l) {
    const std::span<const std::uint64_t> layer(since_point_.data() + std::size_t{l} * grid_.experts, grid_.experts);
    forecasts_[l].add((point_seconds_ + seconds) / 2, load_figures(layer).imbalance);
  }
  std::fill(since_point_.begin(), since_point_.end(), 0);
  taken_since_point_ = 0;
  point_seconds_ = seconds;
}

std::vector<std::uint64_t> ExpertWindow::tokens() const {
  std::vector<std::uint64_t> all = current_.expert_tokens;
  for (std::size_t cell = 0; cell < closed_.expert_tokens.size(); ++cell) all[cell] += closed_.expert_tokens[cell];
  return all;
}

RouterMeans ExpertWindow::router(std::uint32_t layer) const {
  RouterSums sums = current_.router[layer];
  std::vector<std::uint64_t> weights(grid_.experts_per_token);
  const auto add_weights = [&](const Bucket& bucket) {
    for (std::size_t place = 0; place < weights.size(); ++place) weights[place] += bucket.gate_weights[layer * weights.size() + place];
  };
  add_weights(current_);
  if (whole()) {
    const RouterSums& closed = closed_.router[layer];
    sums.tokens += closed.tokens;
    sums.entropy += closed.entropy;
    sums.variance += closed.variance;
    sums.margin += closed.margin;
    add_weights(closed_);
  }
  const auto mean = [&](std::uint64_t sum, double unit) {
    return sums.tokens == 0 ? unknown : static_cast<double>(sum) / unit / static_cast<double>(sums.tokens);
  };
  RouterMeans means{mean(sums.entropy, router_figure_unit), mean(sums.variance, router_figure_unit), mean(sums.margin, router_figure_unit), {}};
  for (const std::uint64_t weight : weights) means.gate_weight.push_back(mean(weight, gate_weight_unit));
  return means;
}

double ExpertWindow::active_experts(std::uint32_t layer) const {
  const std::uint64_t steps = current_.steps + closed_.steps;
  const std::uint64_t met = current_.active[layer] + (whole() ? closed_.active[layer] : 0);
  return steps == 0 ? unknown : static_cast<double>(met) / static_cast<double>(steps);
}

double ExpertWindow::saturation_minutes(std::uint32_t layer, double capacity_factor, double seconds) const {
  return forecasts_[layer].minutes_until(capacity_factor, seconds);
}

}  // namespace althing::monitoring
