// See expert_load.hpp: the run of a rank is decided for the whole report, never cell by cell, so a restarted rank cannot be counted half.
#include "monitoring/expert_load.hpp"

#include <algorithm>

namespace althing::monitoring {

ExpertLoad::ExpertLoad(ExpertGrid grid) : grid_(grid), last_(grid.ranks), windows_(grid.layers), gained_(grid.layers) {
  for (auto& counts : last_) counts.assign(cells(), 0);
  for (Window& window : windows_) window.current.assign(grid_.experts, 0);
}

std::span<const std::uint64_t> ExpertLoad::report(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens) {
  if (rank >= grid_.ranks || layer_major_tokens.size() != cells()) return {};
  std::vector<std::uint64_t>& last = last_[rank];
  if (!std::equal(layer_major_tokens.begin(), layer_major_tokens.end(), last.begin(), std::greater_equal<>())) last.assign(cells(), 0);

  for (std::size_t layer = 0; layer < grid_.layers; ++layer) {
    Window& window = windows_[layer];
    std::uint64_t gained = 0;
    for (std::size_t expert = 0; expert < grid_.experts; ++expert) {
      const std::size_t cell = layer * grid_.experts + expert;
      const std::uint64_t tokens = layer_major_tokens[cell] - last[cell];
      window.current[expert] += tokens;
      gained += tokens;
    }
    gained_[layer] = gained;
    window.current_tokens += gained;
    if (window.current_tokens >= bucket_tokens_per_expert * grid_.experts) {
      window.closed = window.current;
      window.current.assign(grid_.experts, 0);
      window.current_tokens = 0;
    }
  }
  std::copy(layer_major_tokens.begin(), layer_major_tokens.end(), last.begin());
  return gained_;
}

void ExpertLoad::rank_lost(std::uint32_t rank) {
  if (rank < grid_.ranks) last_[rank].assign(cells(), 0);
}

LayerLoad ExpertLoad::load(std::uint32_t layer) const {
  const Window& window = windows_[layer];
  LayerLoad load;
  std::uint64_t largest = 0, sum = 0;
  std::uint32_t idle = 0;
  for (std::size_t expert = 0; expert < grid_.experts; ++expert) {
    const std::uint64_t tokens = window.current[expert] + (window.closed.empty() ? 0 : window.closed[expert]);
    largest = std::max(largest, tokens);
    sum += tokens;
    idle += tokens == 0 ? 1 : 0;
  }
  if (sum > 0) load.imbalance = static_cast<double>(largest) * grid_.experts / static_cast<double>(sum);
  if (!window.closed.empty()) load.experts_idle = idle;
  return load;
}

}  // namespace althing::monitoring
