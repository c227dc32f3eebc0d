// A language model for scheduler tests: its keys and values are a hash of all tokens so far, and every draw one of (seed, choice, these), so one
// wrong, missing or doubled token changes everything after it. lone_run() says what a request must produce whatever else the scheduler does
// meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::tests {

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9u;
  return hash ^ (hash >> 32);
}

// Of no token.
inline constexpr std::uint64_t kv_start = 0xC2B2AE3D27D4EB4Fu;

constexpr std::uint64_t chain_start(const SamplingParameters& sampling) { return mix(mix(0x5851F42D4C957F2Du, sampling.seed), sampling.choice); }

// Whether requests with this seed may run into NaN logits; where, the chain decides.
constexpr bool may_be_nonfinite(const SamplingParameters& sampling) { return sampling.seed % 8 == 7; }

struct PseudoDraw {
  TokenId token = 0;
  bool nonfinite = false;
};

// `kv` covers all tokens before the drawn one.
constexpr PseudoDraw pseudo_draw(std::uint64_t kv, const SamplingParameters& sampling, std::uint32_t vocabulary) {
  const std::uint64_t chain = mix(chain_start(sampling), kv);
  return {static_cast<TokenId>((chain >> 8) % vocabulary), may_be_nonfinite(sampling) && (chain >> 40) % 16 == 0};
}

struct LoneRun {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::length;  // error: nonfinite logits
};

inline LoneRun lone_run(const Submitted& request, const Limits& limits, std::uint32_t vocabulary) {
  const SamplingParameters& sampling = request.sampling;
  const std::uint32_t room = limits.context_tokens_max - static_cast<std::uint32_t>(request.prompt.size());
  const std::uint32_t most = std::min({sampling.completion_tokens_max, limits.completion_tokens_max, room});
  LoneRun run;
  std::uint64_t kv = kv_start;
  for (const TokenId token : request.prompt) kv = mix(kv, token);
  while (run.tokens.size() < most) {
    const PseudoDraw draw = pseudo_draw(kv, sampling, vocabulary);
    if (draw.nonfinite) {
      run.reason = FinishReason::error;
      return run;
    }
    run.tokens.push_back(draw.token);
    kv = mix(kv, draw.token);
    if (!sampling.ignore_stop && std::count(sampling.stop_tokens.begin(), sampling.stop_tokens.end(), draw.token) > 0) {
      run.reason = FinishReason::stop;
      return run;
    }
  }
  return run;
}

}  // namespace althing::tests
