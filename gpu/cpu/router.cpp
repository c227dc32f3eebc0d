// See the header. k is small, so k passes over the logits beat any sort.
#include "gpu/cpu/router.hpp"

#include <algorithm>

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

}  // namespace althing::gpu::cpu
