// One draw from one row of logits. It depends on (logits, parameters, position) and nothing else: noise is keyed, never taken from a stream.
// Filters, in this order, each on the distribution that the one before left (renormalised): temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "scheduler/vocabulary/sampling.hpp"

namespace althing::gpu {

// The key of one draw; 64 well-mixed bits a token. Changing this function changes every sampled stream: a test pins its values.
std::uint64_t draw_key(std::uint64_t seed, std::uint32_t choice, std::uint32_t position);
std::uint64_t noise_bits(std::uint64_t key, TokenId token);
// Standard Gumbel noise, -log(-log u) with u in (0, 1) from the upper 52 bits; finite for all bits.
double gumbel(std::uint64_t bits);

// `position` is the absolute position of the drawn token. Empty when a logit is not finite.
// Equal scores: the smaller id. REQUIRES: logits not empty, parameters in their ranges.
std::optional<TokenId> draw(std::span<const float> logits, const SamplingParameters& parameters, std::uint32_t position);

}  // namespace althing::gpu
