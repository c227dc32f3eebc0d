// Steps at the experts for tests of what counts them: from loads written down by hand, or from choices drawn at random and kept for a recount.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::tests {

// (layers, experts) of tokens, all by copy 0, with gate weight 1 / experts_per_token each.
inline StepCounts step_of(const std::vector<std::vector<std::uint32_t>>& loads, std::uint32_t experts_per_token) {
  StepCounts step;
  step.experts = static_cast<std::uint32_t>(loads.front().size());
  step.experts_per_token = experts_per_token;
  std::uint64_t sum = 0;
  for (const std::uint32_t tokens : loads.front()) sum += tokens;
  step.tokens = static_cast<std::uint32_t>(sum / experts_per_token);
  const std::uint64_t weight = static_cast<std::uint64_t>(gate_weight_unit) / experts_per_token;
  for (const auto& load : loads) {
    LayerCounts layer;
    layer.router = {step.tokens, 0, 0, 0};
    layer.gate_weights.assign(experts_per_token, step.tokens * weight);
    for (std::uint32_t expert = 0; expert < load.size(); ++expert)
      if (load[expert] > 0) layer.experts.push_back({static_cast<std::uint16_t>(expert), 0, load[expert], load[expert] * weight});
    step.layers.push_back(layer);
  }
  return step;
}

inline std::string bytes_of(const StepCounts& step) {
  std::string bytes = begin_step_counts(static_cast<std::uint32_t>(step.layers.size()), step.experts, step.experts_per_token, step.tokens);
  for (const LayerCounts& layer : step.layers) append_layer(bytes, layer);
  return bytes;
}

// Each token chooses evenly and independently.
inline StepCounts random_step(std::mt19937& random, std::uint32_t layers, std::uint32_t experts, std::uint32_t experts_per_token,
                              std::uint32_t tokens) {
  std::vector<std::vector<std::uint32_t>> loads(layers, std::vector<std::uint32_t>(experts));
  std::vector<std::uint32_t> all(experts);
  for (std::uint32_t e = 0; e < experts; ++e) all[e] = e;
  for (auto& load : loads)
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t i = 0; i < experts_per_token; ++i) std::swap(all[i], all[i + random() % (experts - i)]);
      for (std::uint32_t i = 0; i < experts_per_token; ++i) ++load[all[i]];
    }
  return step_of(loads, experts_per_token);
}

}  // namespace althing::tests
