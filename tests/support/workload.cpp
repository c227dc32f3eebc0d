// The generators: see the header. Real numbers are drawn from 53 bits of a counter under a hash, so a seed means the same everywhere where log and
// pow round alike.
#include "tests/support/workload.hpp"

#include <algorithm>
#include <cmath>

namespace althing::workload {
namespace {

constexpr double tail_shape = 1.2;              // of Pareto lengths: the mean is finite, hardly
constexpr std::uint32_t families_a_tenant = 3;  // with a text of their own
constexpr std::uint32_t burst_most = 12, loop_most = 8;

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234'5678'9ABC'DEFu) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(bits() % n); }
  // In (0, 1].
  double share() { return (static_cast<double>(bits() >> 11) + 1.0) * 0x1p-53; }
  double exponential(double mean) { return -std::log(share()) * mean; }
  double pareto(double mean) { return mean * (tail_shape - 1) / tail_shape / std::pow(share(), 1 / tail_shape); }

 private:
  std::uint64_t state_;
};

std::uint32_t length(double drawn, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp(drawn, 1.0, static_cast<double>(std::max(most, 1u))));
}

class Generator {
 public:
  Generator(const Spec& spec, std::uint64_t seed) : spec_(spec), chance_(seed) {}

  // More asks of one kind, at most `most`; false when there is no room for any.
  void add(Kind kind, std::uint32_t tenant, std::vector<Ask>& asks) {
    const bool even = kind == Kind::steady;
    std::uint32_t together = 1;
    if (kind == Kind::bursts || kind == Kind::agents) together = 2 + chance_.below((kind == Kind::bursts ? burst_most : loop_most) - 1);
    together = std::min(together, spec_.asks - static_cast<std::uint32_t>(asks.size()));
    // As many asks in the long run, whatever comes together. A loop takes its time by itself.
    const double mean = static_cast<double>(spec_.distance_us) * together;
    now_us_ += even ? mean : chance_.exponential(mean);
    for (std::uint32_t i = 0; i < together; ++i) {
      Ask ask = one(kind, tenant);
      if (kind == Kind::agents && i > 0) {
        ask.after = static_cast<std::uint32_t>(asks.size()) - 1;
        ask.at_us = static_cast<std::uint64_t>(chance_.exponential(static_cast<double>(spec_.distance_us)));
        ask.family = asks.back().family;
        ask.shared = 0;
        ask.prompt = length(chance_.exponential(spec_.prompt_mean / 2.0), spec_.prompt_max / 4);
      }
      asks.push_back(ask);
    }
  }

 private:
  Ask one(Kind kind, std::uint32_t tenant) {
    Ask ask;
    ask.at_us = static_cast<std::uint64_t>(now_us_);
    ask.tenant = tenant;
    ask.family = tenant * families_a_tenant + chance_.below(families_a_tenant);
    const bool tails = kind == Kind::tails;
    const auto drawn = [&](std::uint32_t mean) { return tails ? chance_.pareto(mean) : chance_.exponential(mean); };
    // A family's text is always as long; what follows is one's own.
    if (kind == Kind::prefixes || kind == Kind::agents)
      ask.shared = (spec_.prompt_max / 2 * (1 + ask.family % families_a_tenant)) / families_a_tenant;
    ask.prompt = ask.shared + length(drawn(spec_.prompt_mean), spec_.prompt_max - std::min(ask.shared, spec_.prompt_max - 1));
    ask.answer = length(drawn(spec_.answer_mean), spec_.answer_max);
    return ask;
  }

  const Spec& spec_;
  Chance chance_;
  double now_us_ = 0;

 public:
  std::uint32_t below(std::uint32_t n) { return chance_.below(n); }
};

}  // namespace

std::optional<Kind> kind_of(std::string_view name) {
  for (int i = 0; i < kind_count; ++i)
    if (name_of(static_cast<Kind>(i)) == name) return static_cast<Kind>(i);
  return std::nullopt;
}

std::vector<Ask> asks_of(const Spec& spec, std::uint64_t seed) {
  std::vector<Ask> asks;
  Generator generator(spec, seed);
  while (asks.size() < spec.asks) {
    const std::uint32_t tenant = generator.below(spec.tenants);
    // In a mixture a tenant is of one kind all the time, as people and programs are.
    const Kind kind = spec.kind != Kind::mixed ? spec.kind : static_cast<Kind>((tenant + seed) % (kind_count - 1));
    generator.add(kind, tenant, asks);
  }
  return asks;
}

}  // namespace althing::workload
