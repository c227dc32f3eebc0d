// What the generator of requests promises: each kind has its shape, and a seed is always the same.
#include "tests/support/workload.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace althing::workload {
namespace {

constexpr Kind kinds[kind_count] = {Kind::steady, Kind::poisson, Kind::bursts, Kind::prefixes, Kind::agents, Kind::tails, Kind::mixed};

Spec spec_of(Kind kind) {
  Spec spec;
  spec.kind = kind;
  spec.asks = 4000;
  spec.tenants = 3;
  return spec;
}

// Between arrivals, in mean distances: the mean, and how far they spread about it.
struct Distances {
  double mean = 0, spread = 0;
};

Distances distances_of(const std::vector<Ask>& asks, double unit_us) {
  std::vector<double> distances;
  double before = 0;
  for (const Ask& ask : asks) {
    if (ask.after) continue;
    distances.push_back((static_cast<double>(ask.at_us) - before) / unit_us);
    before = static_cast<double>(ask.at_us);
  }
  Distances found;
  for (const double distance : distances) found.mean += distance / static_cast<double>(distances.size());
  for (const double distance : distances) found.spread += (distance - found.mean) * (distance - found.mean) / static_cast<double>(distances.size());
  found.spread = std::sqrt(found.spread);
  return found;
}

TEST(Workload, a_seed_is_always_the_same_and_another_is_not) {
  for (const Kind kind : kinds) {
    EXPECT_EQ(asks_of(spec_of(kind), 5), asks_of(spec_of(kind), 5)) << name_of(kind);
    EXPECT_NE(asks_of(spec_of(kind), 5), asks_of(spec_of(kind), 6)) << name_of(kind);
  }
}

TEST(Workload, every_kind_has_a_name_and_no_other_has) {
  for (const Kind kind : kinds) EXPECT_EQ(kind_of(name_of(kind)), kind);
  EXPECT_EQ(kind_of("none"), std::nullopt);
}

TEST(Workload, as_many_asks_as_were_wanted_and_all_within_the_limits) {
  for (const Kind kind : kinds) {
    const Spec spec = spec_of(kind);
    const std::vector<Ask> asks = asks_of(spec, 7);
    ASSERT_EQ(asks.size(), spec.asks) << name_of(kind);
    for (std::uint32_t i = 0; i < asks.size(); ++i) {
      const Ask& ask = asks[i];
      ASSERT_GE(ask.prompt, 1u);
      ASSERT_LE(ask.prompt, spec.prompt_max);
      ASSERT_LT(ask.shared, ask.prompt);
      ASSERT_GE(ask.answer, 1u);
      ASSERT_LE(ask.answer, spec.answer_max);
      ASSERT_LT(ask.tenant, spec.tenants);
      if (ask.after) {
        ASSERT_LT(*ask.after, i);
        ASSERT_EQ(asks[*ask.after].tenant, ask.tenant);
      }
    }
  }
}

TEST(Workload, smallest_numbers_do_no_harm) {
  for (const Kind kind : kinds) {
    const std::vector<Ask> asks = asks_of({kind, 1, 1, 1, 1, 1, 1, 1}, 3);
    ASSERT_EQ(asks.size(), 1u);
    EXPECT_EQ(asks[0].prompt, 1u);
    EXPECT_EQ(asks[0].answer, 1u);
  }
}

TEST(Workload, arrivals_are_even_independent_or_in_bursts) {
  const auto of = [](Kind kind) { return distances_of(asks_of(spec_of(kind), 11), static_cast<double>(Spec{}.distance_us)); };
  EXPECT_NEAR(of(Kind::steady).mean, 1, 0.01);
  EXPECT_LT(of(Kind::steady).spread, 0.01);
  EXPECT_NEAR(of(Kind::poisson).mean, 1, 0.05);
  EXPECT_NEAR(of(Kind::poisson).spread, 1, 0.1);
  EXPECT_NEAR(of(Kind::bursts).mean, 1, 0.15);
  EXPECT_GT(of(Kind::bursts).spread, 2);
}

TEST(Workload, a_family_shares_its_beginning) {
  std::set<std::uint32_t> families;
  for (const Ask& ask : asks_of(spec_of(Kind::prefixes), 2)) {
    families.insert(ask.family);
    EXPECT_GT(ask.shared, 0u);
  }
  EXPECT_EQ(families.size(), 9u);
}

TEST(Workload, agents_go_on_from_their_own_answers) {
  const std::vector<Ask> asks = asks_of(spec_of(Kind::agents), 2);
  const auto go_on = std::count_if(asks.begin(), asks.end(), [](const Ask& ask) { return ask.after.has_value(); });
  EXPECT_GT(go_on, static_cast<std::ptrdiff_t>(asks.size()) / 2);
}

TEST(Workload, tails_are_long) {
  Spec spec = spec_of(Kind::tails);
  spec.answer_max = 100'000;
  std::vector<std::uint32_t> answers;
  for (const Ask& ask : asks_of(spec, 2)) answers.push_back(ask.answer);
  std::sort(answers.begin(), answers.end());
  EXPECT_LT(answers[answers.size() / 2], spec.answer_mean / 2);
  EXPECT_GT(answers.back(), 50 * spec.answer_mean);
}

TEST(Workload, a_tenant_of_a_mixture_is_of_one_kind) {
  std::set<std::uint32_t> with_families, with_loops;
  Spec spec = spec_of(Kind::mixed);
  spec.tenants = kind_count - 1;
  for (const Ask& ask : asks_of(spec, 0)) {
    if (ask.shared > 0) with_families.insert(ask.tenant);
    if (ask.after) with_loops.insert(ask.tenant);
  }
  EXPECT_EQ(with_families, (std::set<std::uint32_t>{3, 4}));
  EXPECT_EQ(with_loops, (std::set<std::uint32_t>{4}));
}

}  // namespace
}  // namespace althing::workload
