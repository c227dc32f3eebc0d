// One draw from one row of logits. It depends on (logits, parameters, position) and nothing else: noise is keyed, never taken from a stream.
// Filters, in this order, each on the distribution that the one before left (renormalised): temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpu/draw_key.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing::gpu {

// `position` is the absolute position of the drawn token. Empty when a logit is not finite.
// Equal scores: the smaller id. REQUIRES: logits not empty, parameters in their ranges.
std::optional<TokenId> draw(std::span<const float> logits, const SamplingParameters& parameters, std::uint32_t position);

}  // namespace althing::gpu
