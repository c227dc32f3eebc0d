// How the next token is drawn. A draw is the argmax over the kept tokens of logits / temperature plus Gumbel noise keyed by
// (seed, choice, position, token id), so it depends on nothing else: not on the batch, the chunking or a restart.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing {

struct TokenBias {
  TokenId token = 0;
  float bias = 0.0F;  // added to its logit; -100 … 100

  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

// Before a draw its logits are adjusted: penalties, then biases. Logprobs are of what results, at temperature 1 and before any filter.
struct SamplingParameters {
  float temperature = 0.0F;  // 0: greedy (the smallest id among equal logits); 0 … 2
  float top_p = 1.0F;        // keep the smallest set of most likely tokens whose probability reaches this; (0, 1]
  std::uint32_t top_k = 0;   // keep this many most likely tokens; 0: all
  float min_p = 0.0F;        // keep tokens at least this likely relative to the most likely one; [0, 1]
  std::uint64_t seed = 0;    // always set by the time it reaches the core (a missing one is drawn at admission)
  std::uint32_t choice = 0;  // which of n completions of one prompt this is
  std::uint32_t completion_tokens_max = 256;
  std::vector<TokenId> stop_tokens;  // generation ends with (and includes) any of these
  bool ignore_stop = false;          // run to completion_tokens_max whatever is drawn
  // Of a token that occurs in prompt or completion a positive logit is divided by this and a negative one multiplied; (0, 10]. 1: nothing
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;   // subtracted from the logits of tokens of the completion; -2 … 2
  float frequency_penalty = 0.0F;  // likewise, times how often it has the token
  std::vector<TokenBias> logit_bias{};
  bool logprobs = false;           // each drawn token's logprob is told …
  std::uint32_t top_logprobs = 0;  // … and those of this many most likely ones; 0 … logprobs_top_max

  // Draws depend on which tokens came before, besides logits.
  bool penalizes() const { return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F; }
  friend bool operator==(const SamplingParameters&, const SamplingParameters&) = default;
};

}  // namespace althing
