// What clients ask for and when: arrivals, lengths, and what requests have in common, as a pure function of a seed. The simulated cluster plays it
// on virtual time and the load benchmark on a server; both say the words in their own way. Lengths are in tokens where the reader has tokens, in
// words where it has words.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace althing::workload {

enum class Kind : std::uint8_t {
  steady,    // one at a time, at even distances
  poisson,   // each independent of all others
  bursts,    // nothing, and then many at once
  prefixes,  // Poisson, in families that begin with the same long text, as under one system prompt
  agents,    // loops: each ask goes on from the answer to the one before, a little later
  tails,     // Poisson, most short and a few very long: Pareto lengths of prompts and answers
  mixed,     // all of these, from different tenants
};
inline constexpr int kind_count = 7;

constexpr std::string_view name_of(Kind kind) {
  constexpr std::string_view names[kind_count] = {"steady", "poisson", "bursts", "prefixes", "agents", "tails", "mixed"};
  return names[static_cast<int>(kind)];
}
std::optional<Kind> kind_of(std::string_view name);

struct Spec {
  Kind kind = Kind::poisson;
  std::uint32_t asks = 100;
  std::uint32_t tenants = 1;
  std::uint64_t distance_us = 10'000;  // mean, between two arrivals of all tenants together
  std::uint32_t prompt_mean = 16;      // of the part that an ask has for itself
  std::uint32_t prompt_max = 64;       // of the whole prompt, what is shared included
  std::uint32_t answer_mean = 16;
  std::uint32_t answer_max = 64;
};

struct Ask {
  std::uint64_t at_us = 0;             // since the beginning, or with `after` since that ask has ended
  std::optional<std::uint32_t> after;  // goes on from the prompt and the answer of this earlier ask
  std::uint32_t tenant = 0;            // 0 … tenants-1
  std::uint32_t family = 0;            // asks of one family begin with the same `shared` …
  std::uint32_t shared = 0;            // … of their family's text; less than `prompt`
  std::uint32_t prompt = 1;            // 1 or more; with `after`: behind what it goes on from
  std::uint32_t answer = 1;            // 1 or more, at most

  friend bool operator==(const Ask&, const Ask&) = default;
};

// In order of arrival, as far as that is known beforehand. REQUIRES: no number of `spec` is 0.
std::vector<Ask> asks_of(const Spec& spec, std::uint64_t seed);

}  // namespace althing::workload
