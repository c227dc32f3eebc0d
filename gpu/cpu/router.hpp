// Which experts a token goes to, and with what weights. Deterministic for every input: the smaller id wins among equals, and NaN still yields
// distinct, existing experts (with NaN weights, so that the row surfaces as nonfinite).
#pragma once

#include <cstdint>
#include <span>

namespace althing::gpu::cpu {

// chosen and weights have k entries, k <= logits.size(); chosen is in the order of falling logits.
void choose_experts(std::span<const float> logits, std::span<std::uint32_t> chosen, std::span<float> weights);

}  // namespace althing::gpu::cpu
