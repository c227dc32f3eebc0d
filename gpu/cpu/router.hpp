// Which experts a token goes to, and with what weights. Deterministic for every input: the smaller id wins among equals, and NaN still yields
// distinct, existing experts (with NaN weights, so that the row surfaces as nonfinite).
#pragma once

#include <cstdint>
#include <span>

namespace althing::gpu::cpu {

// chosen and weights have k entries, k <= logits.size(); chosen is in the order of falling logits.
void choose_experts(std::span<const float> logits, std::span<std::uint32_t> chosen, std::span<float> weights);

// How sure the router was of one token. Not finite when a logit is not.
struct RouterFigures {
  double entropy = 0;   // of the softmax over all experts, nats
  double variance = 0;  // of the logits over experts
  double margin = 0;    // between the largest and the second; 0 when there is one expert

  bool finite() const;
};
RouterFigures router_figures(std::span<const float> logits);

}  // namespace althing::gpu::cpu
