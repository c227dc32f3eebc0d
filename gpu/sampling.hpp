// One draw from one row of logits, and what is told of it. It depends on (logits, parameters, position) and nothing else: noise is keyed, never taken
// from a stream. Order: penalties, biases, the mask; logprobs are of what is left; then temperature and filters. Filters, in this order, each on the
// distribution that the one before left (renormalised): temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpu/draw_key.hpp"
#include "gpu/seen_tokens.hpp"
#include "scheduler/vocabulary/logprobs.hpp"
#include "scheduler/vocabulary/sampling.hpp"
#include "scheduler/vocabulary/token_mask.hpp"

namespace althing::gpu {

// Penalties of tokens that were seen, then biases, in place. Finite logits stay finite, and others as they are. Tokens outside of `logits` are
// ignored.
void adjust(std::span<float> logits, const SamplingParameters& parameters, std::span<const SeenToken> seen);

// `position` is the absolute position of the drawn token. Empty when a logit is not finite.
// Equal scores: the smaller id. REQUIRES: logits not empty, parameters in their ranges.
// `legal`: a bit a token (token_mask.hpp), one at least; none: all are legal. A token that is not legal takes no part at all, but its logit must be
// finite.
std::optional<TokenId> draw(std::span<const float> logits, const SamplingParameters& parameters, std::uint32_t position,
                            std::span<const std::uint32_t> legal = {});

// Of the drawn token and the top_count most likely legal ones, or fewer where there are fewer. REQUIRES: logits are finite and chosen is one of them.
TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, std::uint32_t top_count, std::span<const std::uint32_t> legal = {});

}  // namespace althing::gpu
