// See the header.
#include "gpu/cpu/step_counter.hpp"

#include <algorithm>
#include <cmath>

#include "scheduler/vocabulary/placement.hpp"

namespace althing::gpu::cpu {
namespace {

std::uint64_t fixed(double figure) {
  return static_cast<std::uint64_t>(std::llrint(std::clamp(figure, 0.0, router_figure_max) * router_figure_unit));
}

}  // namespace

StepCounter::StepCounter(std::uint32_t layers, std::uint32_t experts, std::uint32_t tokens_max)
    : layers_(layers), experts_(experts), figures_(tokens_max) {}

void StepCounter::know_copies(std::span<const std::uint32_t> copies) {
  copies_.assign(copies.begin(), copies.end());
  first_cell_.clear();
  cells_.clear();
  for (std::uint32_t expert = 0; expert < copies_.size(); ++expert) {
    first_cell_.push_back(static_cast<std::uint32_t>(cells_.size()));
    for (std::uint32_t copy = 0; copy < copies_[expert]; ++copy)
      cells_.push_back({static_cast<std::uint16_t>(expert), static_cast<std::uint16_t>(copy), 0, 0});
  }
}

void StepCounter::begin(std::uint32_t tokens, std::uint32_t experts_per_token) {
  tokens_ = tokens;
  experts_per_token_ = experts_per_token;
  bytes_ = begin_step_counts(layers_, experts_, experts_per_token, tokens);
}

RouterSums StepCounter::sum_figures() const {
  RouterSums sums;
  for (std::uint32_t token = 0; token < tokens_; ++token) {
    const RouterFigures& figures = figures_[token];
    if (!figures.finite()) continue;
    ++sums.tokens;
    sums.entropy += fixed(figures.entropy);
    sums.variance += fixed(figures.variance);
    sums.margin += fixed(figures.margin);
  }
  return sums;
}

// Tokens without finite logits are computed, and so they are counted; their weights are not numbers.
void StepCounter::add_layer(const LayerChoice& choice) {
  layer_.router = sum_figures();
  layer_.diverted = choice.diverted;
  layer_.gate_weights.assign(experts_per_token_, 0);
  layer_.experts.clear();
  std::size_t pair = 0;
  for (std::uint32_t token = 0; token < tokens_; ++token) {
    const bool finite = figures_[token].finite();
    for (std::uint32_t place = 0; place < experts_per_token_; ++place, ++pair) {
      const std::uint32_t expert = choice.experts[pair];
      const std::uint32_t copies = copies_[expert];
      const std::uint32_t copy = !choice.copy.empty() ? choice.copy[pair] : copies == 1 ? 0 : copy_for(ExpertId{expert}, token, copies);
      if (copy == no_copy) continue;
      ExpertCount& cell = cells_[first_cell_[expert] + copy];
      ++cell.tokens;
      if (!finite) continue;
      const auto weight = static_cast<std::uint64_t>(std::llrint(choice.weights[pair] * gate_weight_unit));
      cell.gate_weight += weight;
      layer_.gate_weights[place] += weight;
    }
  }
  for (ExpertCount& cell : cells_) {
    if (cell.tokens == 0) continue;
    layer_.experts.push_back(cell);
    cell.tokens = 0;
    cell.gate_weight = 0;
  }
  append_layer(bytes_, layer_);
}

}  // namespace althing::gpu::cpu
