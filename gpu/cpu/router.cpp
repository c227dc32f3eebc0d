// See the header. k is small, so k passes over the logits beat any sort.
#include "gpu/cpu/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/cpu/elementwise.hpp"

namespace althing::gpu::cpu {

void choose_experts(std::span<const float> logits, std::span<std::uint32_t> chosen, std::span<float> weights) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto taken = [&](std::uint32_t e) {
      return std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(i), e) != chosen.begin() + static_cast<std::ptrdiff_t>(i);
    };
    std::uint32_t best = 0;
    while (taken(best)) ++best;
    for (std::uint32_t e = best + 1; e < logits.size(); ++e)
      if (logits[e] > logits[best] && !taken(e)) best = e;
    chosen[i] = best;
  }
  float sum = 0.0F;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    weights[i] = exp_f32(logits[chosen[i]] - logits[chosen[0]]);
    sum += weights[i];
  }
  for (float& weight : weights) weight /= sum;
}

bool RouterFigures::finite() const { return std::isfinite(entropy) && std::isfinite(variance) && std::isfinite(margin); }

RouterFigures router_figures(std::span<const float> logits) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  double sum = 0.0;
  for (const float logit : logits) {
    second = std::max(second, std::min(first, logit));
    first = std::max(first, logit);
    sum += logit;
  }
  const double mean = sum / static_cast<double>(logits.size());
  double squares = 0.0, weights = 0.0, weighted = 0.0;
  for (const float logit : logits) {
    const double weight = exp_f32(logit - first), below = static_cast<double>(first) - logit;
    squares += (logit - mean) * (logit - mean);
    weights += weight;
    weighted += weight * below;
  }
  // -sum p log p with p = weight / weights and log weight = -below.
  return {std::log(weights) + weighted / weights, squares / static_cast<double>(logits.size()),
          logits.size() < 2 ? 0.0 : static_cast<double>(first) - second};
}

}  // namespace althing::gpu::cpu
