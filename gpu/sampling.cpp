// See the header. Candidates are sorted only as far as the filters need: a full sort of 200,000 logits a row would cost more than the head.
#include "gpu/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace althing::gpu {
namespace {

struct Candidate {
  float logit;
  TokenId token;
};
// Most likely first; the smaller id first among equals, so that every filter is a prefix of one total order.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

bool all_finite(std::span<const float> logits) {
  bool finite = true;
  for (const float value : logits) finite &= std::isfinite(value);
  return finite;
}

bool takes_part(std::span<const std::uint32_t> legal, TokenId token) { return legal.empty() || is_legal(legal, token); }

TokenId argmax(std::span<const float> logits, std::span<const std::uint32_t> legal) {
  TokenId best = 0;
  bool found = legal.empty();
  for (TokenId token = 0; token < logits.size(); ++token) {
    if (!takes_part(legal, token) || (found && !(logits[token] > logits[best]))) continue;
    best = token;
    found = true;
  }
  return best;
}

// Sorts the first `count` of the total order to the front.
void sort_front(std::vector<Candidate>& all, std::size_t count) {
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(), before);
}

// The smallest prefix whose probability reaches top_p of the total. Summed in the total order, in double.
void keep_top_p(std::vector<Candidate>& kept, double top_p, double temperature, float highest) {
  const auto weight = [&](const Candidate& c) { return std::exp((double{c.logit} - highest) / temperature); };
  double total = 0;
  for (const Candidate& c : kept) total += weight(c);
  std::size_t sorted = 0;
  double sum = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(kept.size(), std::max<std::size_t>(256, sorted * 8));
      sort_front(kept, sorted);
    }
    sum += weight(kept[i]);
    if (sum >= top_p * total) {
      kept.resize(i + 1);
      return;
    }
  }
}

// A penalty near 0 could divide beyond what a float holds, and an honest logit would look like a broken one.
float kept_finite(double adjusted, float before) {
  constexpr double most = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(before) ? std::clamp(adjusted, -most, most) : adjusted);
}

}  // namespace

void adjust(std::span<float> logits, const SamplingParameters& parameters, std::span<const SeenToken> seen) {
  if (parameters.penalizes()) {
    const double repetition = parameters.repetition_penalty, presence = parameters.presence_penalty, frequency = parameters.frequency_penalty;
    for (const SeenToken& entry : seen) {
      if (entry.token >= logits.size()) continue;
      float& logit = logits[entry.token];
      double value = logit > 0 ? logit / repetition : logit * repetition;
      if (entry.output_count > 0) value = value - frequency * entry.output_count - presence;
      logit = kept_finite(value, logit);
    }
  }
  for (const TokenBias& entry : parameters.logit_bias)
    if (entry.token < logits.size()) logits[entry.token] += entry.bias;
}

TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, std::uint32_t top_count, std::span<const std::uint32_t> legal) {
  const double highest = logits[argmax(logits, legal)];
  double sum = 0;
  for (TokenId token = 0; token < logits.size(); ++token)
    if (takes_part(legal, token)) sum += std::exp(logits[token] - highest);
  const double normaliser = highest + std::log(sum);
  constexpr double least = std::numeric_limits<float>::lowest();
  const auto logprob_of = [&](TokenId token) { return static_cast<float>(std::max(least, logits[token] - normaliser)); };
  TokenLogprobs told{chosen, logprob_of(chosen), {}};
  if (top_count == 0) return told;
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (TokenId token = 0; token < logits.size(); ++token)
    if (takes_part(legal, token)) all.push_back({logits[token], token});
  const std::size_t count = std::min<std::size_t>(top_count, all.size());
  sort_front(all, count);
  for (std::size_t i = 0; i < count; ++i) told.top.push_back({all[i].token, logprob_of(all[i].token)});
  return told;
}

std::optional<TokenId> draw(std::span<const float> logits, const SamplingParameters& parameters, std::uint32_t position,
                            std::span<const std::uint32_t> legal) {
  if (!all_finite(logits)) return std::nullopt;
  const TokenId best = argmax(logits, legal);
  if (parameters.temperature == 0.0F) return best;
  const double temperature = parameters.temperature;
  const float highest = logits[best];

  // min-p is relative to the most likely token, which no earlier filter removes, so it can go first and make the rest cheap; top-p then needs
  // the total of what top-k alone leaves, so it only runs first when top-p is off.
  std::vector<Candidate> kept;
  const double floor = parameters.min_p > 0.0F ? double{highest} + temperature * std::log(double{parameters.min_p}) : -INFINITY;
  const bool whole = parameters.top_p < 1.0F;
  for (TokenId token = 0; token < logits.size(); ++token)
    if (takes_part(legal, token) && (whole || logits[token] >= floor)) kept.push_back({logits[token], token});
  if (parameters.top_k != 0 && parameters.top_k < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + parameters.top_k, kept.end(), before);
    kept.resize(parameters.top_k);
    // nth_element leaves an unspecified order; sums below must not depend on it.
    std::sort(kept.begin(), kept.end(), before);
  }
  if (whole) keep_top_p(kept, parameters.top_p, temperature, highest);

  const std::uint64_t key = draw_key(parameters.seed, parameters.choice, position);
  TokenId chosen = best;
  double score = -INFINITY;
  for (const Candidate& c : kept) {
    if (c.logit < floor) continue;
    const double mine = c.logit / temperature + gumbel(noise_bits(key, c.token));
    if (mine > score || (mine == score && c.token < chosen)) chosen = c.token, score = mine;
  }
  return chosen;
}

}  // namespace althing::gpu
