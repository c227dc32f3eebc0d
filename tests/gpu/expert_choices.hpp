// Which experts two sets of router logits choose. Where two experts' logits are close, a small error makes another choice (a flip), and the token's
// values are far from then on: such tokens are told apart from wrong ones by their margin, which an error of the size seen elsewhere must explain.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace althing::tests {

struct Flip {
  std::size_t token = 0;
  double margin = 0;  // by how much the reference prefers its own choice
};

struct ChoiceComparison {
  std::vector<bool> same;   // by token
  std::vector<Flip> flips;  // of tokens that were to be compared
  double error = 0;         // the largest of a logit, where the choice is the same

  // Each logit may be off by `error`: that closes a margin of twice as much.
  bool explains(const Flip& flip) const { return flip.margin < 2 * error; }
};

// The `count` largest, the smaller id first among equals.
inline std::vector<std::size_t> chosen_experts(std::span<const float> logits, std::size_t count) {
  std::vector<std::size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), std::size_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  ids.resize(count);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// ours, theirs: (tokens, experts). Tokens outside `compared` say nothing about the error and count as no flip. REQUIRES: sizes fit.
inline ChoiceComparison compare_choices(std::span<const float> ours, std::span<const float> theirs, std::size_t count,
                                        const std::vector<bool>& compared) {
  const std::size_t tokens = compared.size(), experts = theirs.size() / tokens;
  ChoiceComparison c;
  c.same.resize(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto a = ours.subspan(t * experts, experts), b = theirs.subspan(t * experts, experts);
    const auto own = chosen_experts(a, count), wanted = chosen_experts(b, count);
    c.same[t] = own == wanted;
    if (!compared[t]) continue;
    if (c.same[t]) {
      for (std::size_t e = 0; e < experts; ++e) c.error = std::max(c.error, std::abs(double{a[e]} - double{b[e]}));
      continue;
    }
    // The widest gap that was crossed.
    double highest = -INFINITY, lowest = INFINITY;
    for (const std::size_t e : wanted)
      if (!std::binary_search(own.begin(), own.end(), e)) highest = std::max(highest, double{b[e]});
    for (const std::size_t e : own)
      if (!std::binary_search(wanted.begin(), wanted.end(), e)) lowest = std::min(lowest, double{b[e]});
    c.flips.push_back({t, highest - lowest});
  }
  return c;
}

}  // namespace althing::tests
