// How the next token is drawn. A draw is the argmax over the kept tokens of logits / temperature plus Gumbel noise keyed by
// (seed, choice, position, token id), so it depends on nothing else: not on the batch, the chunking or a restart.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing {

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

  friend bool operator==(const SamplingParameters&, const SamplingParameters&) = default;
};

}  // namespace althing
