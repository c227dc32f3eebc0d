// Capacities, the adaptive factor, and who gets which expert when they are limited: worked examples, then properties of random steps.
#include "gpu/expert_control.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "gpu/cpu/expert_assignment.hpp"
#include "gpu/cpu/router.hpp"

namespace althing::gpu {
namespace {

using cpu::no_copy;
using testing::ElementsAre;
using testing::FloatNear;

TEST(ExpertCapacity, is_the_fair_share_times_the_factor_rounded_up) {
  EXPECT_EQ(expert_capacity(32 * 1024, 2, 16, 1.25, 1), 5120u);
  EXPECT_EQ(expert_capacity(8192, 2, 16, 1.25, 1), 1280u);
  EXPECT_EQ(expert_capacity(131'072, 2, 16, 1.25, 1), 20'480u);
  EXPECT_EQ(expert_capacity(1, 2, 16, 1.25, 1), 1u) << "0.16 of a token is room for none";
  EXPECT_EQ(expert_capacity(80, 2, 16, 1.1, 1), 11u) << "1.1 is no binary fraction, and still no twelfth place";
  EXPECT_EQ(expert_capacity(81, 2, 16, 1.1, 1), 12u);
  EXPECT_EQ(expert_capacity(32'755, 2, 16, 1.25, 1), 5118u);
  EXPECT_EQ(expert_capacity(32'755, 2, 16, 1.25, 128), 5120u);
  EXPECT_EQ(expert_capacity(1, 4, 32, 1.25, 128), 128u);
}

TEST(AdaptiveCapacity, follows_the_load_by_tenths_and_rests_between) {
  AdaptiveCapacity capacity(1.25);
  std::vector<double> factors;
  for (const double load : {.97, .97, .97, .7, .6, .6, .6, .6}) {
    capacity.observe(load);
    factors.push_back(capacity.factor());
  }
  const double expected[] = {1.375, 1.5, 1.5, 1.5, 1.35, 1.215, 1.0935, 1.0};
  for (std::size_t i = 0; i < factors.size(); ++i) EXPECT_NEAR(factors[i], expected[i], 1e-12) << i;
  for (const double load : {0.96, 0.64, 0.8}) {
    AdaptiveCapacity rests(1.25);
    rests.observe(load);
    EXPECT_EQ(rests.factor(), 1.25) << load;
  }
}

TEST(ExpertControl, what_cannot_be_is_refused_by_name) {
  const auto field = [](const auto& change) {
    ExpertControl control;
    change(control);
    const Status status = check(control);
    return status ? std::string() : status.error().field;
  };
  EXPECT_EQ(field([](ExpertControl&) {}), "");
  EXPECT_EQ(field([](ExpertControl& c) { c.capacity_factor = 0; }), "capacity-factor");
  EXPECT_EQ(field([](ExpertControl& c) { c.capacity_factor = NAN; }), "capacity-factor");
  EXPECT_EQ(field([](ExpertControl& c) { c.capacity_multiple = 0; }), "capacity-multiple");
  EXPECT_EQ(field([](ExpertControl& c) { c.router_temperature = 0; }), "router-temperature");
  EXPECT_EQ(field([](ExpertControl& c) { c.adaptive = true; }), "adaptive-capacity");
  EXPECT_EQ(field([](ExpertControl& c) { c.dynamic_k = DynamicK::gap, c.dynamic_k_value = -1; }), "dynamic-k");
  EXPECT_EQ(field([](ExpertControl& c) { c.dynamic_k = DynamicK::mass, c.dynamic_k_value = 0; }), "dynamic-k");
  EXPECT_EQ(field([](ExpertControl& c) { c.dynamic_k = DynamicK::mass, c.dynamic_k_value = 1; }), "");
}

// A layer's step: logits by token, and what the assignment makes of them.
struct Step {
  std::vector<std::vector<float>> logits;
  std::uint32_t k = 2;
  std::vector<std::uint32_t> copies{};  // all 1 when empty
  std::vector<std::uint8_t> padding{};
  std::vector<std::uint32_t> chosen{}, copy{};
  std::vector<float> weights{};
  cpu::ExpertAssignment assignment{};

  ControlCounts run(const ExpertControl& control) {
    const std::size_t tokens = logits.size();
    copies.resize(logits[0].size(), 1);
    chosen.assign(tokens * k, 0);
    copy.assign(tokens * k, 7777);
    weights.assign(tokens * k, 0);
    std::vector<const float*> rows;
    for (std::size_t t = 0; t < tokens; ++t) {
      rows.push_back(logits[t].data());
      cpu::choose_experts(logits[t], std::span(chosen).subspan(t * k, k), std::span(weights).subspan(t * k, k));
    }
    return assignment.assign(control, control.capacity_factor,
                             {.tokens = static_cast<std::uint32_t>(tokens),
                              .experts_per_token = k,
                              .logits = rows.data(),
                              .copies = copies,
                              .padding = padding,
                              .chosen = chosen,
                              .weights = weights,
                              .copy = copy});
  }
  std::map<std::uint32_t, std::uint32_t> load() const {  // by expert
    std::map<std::uint32_t, std::uint32_t> counted;
    for (std::size_t pair = 0; pair < chosen.size(); ++pair)
      if (copy[pair] != no_copy) ++counted[chosen[pair]];
    return counted;
  }
};

ExpertControl limited(OverflowPolicy policy, double factor) {
  ExpertControl control;
  control.overflow = policy;
  control.capacity_factor = factor;
  return control;
}

TEST(ExpertAssignment, a_full_expert_sends_tokens_to_the_next_best_one_with_room) {
  // Four tokens that all want experts 0 and 1 of five; the fair share of 8 pairs is 1.6.
  Step step{{4, {5, 4, 3, 2, 1}}};
  const ControlCounts two = step.run(limited(OverflowPolicy::reroute, 1.25));
  EXPECT_EQ(step.assignment.capacity(), 2u);
  EXPECT_THAT(step.chosen, ElementsAre(0, 1, 0, 1, 2, 3, 2, 3)) << "a count of 2 is full, one of 1 is not";
  EXPECT_EQ(two, (ControlCounts{.wanted = 8, .rerouted = 4, .room = 10}));
  EXPECT_THAT(step.weights, ElementsAre(FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F), FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F),
                                        FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F), FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F)))
      << "softmax over the experts that a token really gets";
  EXPECT_DOUBLE_EQ(step.assignment.load(), 2.0) << "4 wanted expert 0, which takes 2";

  const ControlCounts one = step.run(limited(OverflowPolicy::reroute, 0.625));
  EXPECT_EQ(step.assignment.capacity(), 1u);
  EXPECT_THAT(step.load(), ElementsAre(std::pair(0u, 1u), std::pair(1u, 1u), std::pair(2u, 1u), std::pair(3u, 1u), std::pair(4u, 1u)));
  EXPECT_EQ(one, (ControlCounts{.wanted = 8, .rerouted = 3, .dropped = 3, .room = 5}));
  EXPECT_THAT(std::span(step.weights).first(6),
              ElementsAre(FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F), FloatNear(0.7311F, 1e-4F), FloatNear(0.2689F, 1e-4F), 1.0F, 0.0F));

  const ControlCounts three = step.run(limited(OverflowPolicy::reroute, 1.875));
  EXPECT_THAT(step.chosen, ElementsAre(0, 1, 0, 1, 0, 1, 2, 3));
  EXPECT_EQ(three.rerouted, 2u);
}

TEST(ExpertAssignment, dropped_pairs_add_nothing_and_others_keep_their_weights) {
  Step step{{4, {1.4895F, 1.0F, 0, -1}}};
  const ControlCounts counts = step.run(limited(OverflowPolicy::drop, 0.5));
  EXPECT_EQ(step.assignment.capacity(), 1u);
  EXPECT_EQ(counts, (ControlCounts{.wanted = 8, .dropped = 6, .room = 4}));
  EXPECT_THAT(std::span(step.weights).first(4), ElementsAre(FloatNear(0.62F, 1e-4F), FloatNear(0.38F, 1e-4F), 0.0F, 0.0F));
  EXPECT_THAT(step.copy, ElementsAre(0, 0, no_copy, no_copy, no_copy, no_copy, no_copy, no_copy));
  EXPECT_EQ(step.run(limited(OverflowPolicy::pad, 1.0)), (ControlCounts{.wanted = 8, .dropped = 4, .padding = 4, .room = 8}));
  EXPECT_EQ(step.assignment.padding_of(0, 0), 0u);
  EXPECT_EQ(step.assignment.padding_of(3, 0), 2u);
}

TEST(ExpertAssignment, another_copy_with_room_comes_before_another_expert) {
  Step step{{6, {5, 4, 3, 2}}, 1, {3, 1, 1, 1}};
  ControlCounts counts = step.run(limited(OverflowPolicy::reroute, 0.5));
  EXPECT_EQ(step.assignment.capacity(), 1u);
  EXPECT_THAT(step.chosen, ElementsAre(0, 0, 0, 1, 2, 3));
  EXPECT_THAT(std::span(step.copy).first(3), ElementsAre(0, 1, 2));
  EXPECT_EQ(counts, (ControlCounts{.wanted = 6, .rerouted = 3, .room = 6}));
  // Turns fall unevenly on the copies when tokens in between go elsewhere.
  step.logits = {{5, 4, 3, 2}, {0, 9, 1, 1}, {0, 1, 9, 1}, {5, 4, 3, 2}, {5, 4, 3, 2}};
  counts = step.run(limited(OverflowPolicy::reroute, 0.5));
  EXPECT_THAT(step.copy, ElementsAre(0, 0, 0, 1, 2)) << "token 3 finds its copy 0 full, token 4 its copy 1";
  EXPECT_EQ(counts, (ControlCounts{.wanted = 5, .to_replica = 2, .room = 6}));
  EXPECT_EQ(step.run(limited(OverflowPolicy::drop, 0.5)).dropped, 1u) << "drop knows no other copies: token 3 is late, token 4 has copy 1";
}

TEST(ExpertAssignment, temperature_moves_weights_and_never_the_choice) {
  Step step{{{1.4895F, 1.0F, 0.2F}}};
  ExpertControl control;
  control.router_temperature = 1.3F;
  step.run(control);
  EXPECT_THAT(step.chosen, ElementsAre(0, 1));
  EXPECT_THAT(step.weights, ElementsAre(FloatNear(0.593F, 1e-3F), FloatNear(0.407F, 1e-3F)));
}

TEST(ExpertAssignment, sure_tokens_get_fewer_experts) {
  Step step{{{2, 1.9F, 1, 0}, {2, 1.2F, 1, 0}, {9, 1, 1, 0}}, 3};
  ExpertControl control;
  control.dynamic_k = DynamicK::gap;
  control.dynamic_k_value = 0.9F;
  EXPECT_EQ(step.run(control), (ControlCounts{.wanted = 9, .omitted = 4}));
  EXPECT_THAT(step.copy, ElementsAre(0, 0, no_copy, 0, 0, no_copy, 0, no_copy, no_copy));
  EXPECT_THAT(std::span(step.weights).last(3), ElementsAre(1.0F, 0.0F, 0.0F));
  control.dynamic_k = DynamicK::mass;
  control.dynamic_k_value = 0.6F;  // softmax of the first: .409 .370 .150 .055
  EXPECT_EQ(step.run(control).omitted, 1u + 1u + 2u);
  // A gap that nothing exceeds, and the whole mass: k experts, and the router's own bits.
  for (const auto& [rule, value] : {std::pair(DynamicK::gap, 100.0F), std::pair(DynamicK::mass, 1.0F)}) {
    control.dynamic_k = rule;
    control.dynamic_k_value = value;
    EXPECT_EQ(step.run(control).omitted, 0u);
  }
}

TEST(ExpertAssignment, padding_of_the_batch_counts_nowhere) {
  std::mt19937 random(5);
  std::vector<std::vector<float>> logits(24, std::vector<float>(8));
  for (auto& row : logits)
    for (float& logit : row) logit = static_cast<float>(random() % 100) / 20.0F;
  Step plain{logits};
  const ControlCounts counts = plain.run(limited(OverflowPolicy::reroute, 1.0));
  Step padded{logits};
  padded.logits.resize(64, std::vector<float>(8, 1.0F));
  padded.padding.assign(64, 1);
  std::fill_n(padded.padding.begin(), 24, std::uint8_t{0});
  EXPECT_EQ(padded.run(limited(OverflowPolicy::reroute, 1.0)), counts);
  EXPECT_GT(counts.rerouted, 0u);
  padded.chosen.resize(48), padded.weights.resize(48);
  EXPECT_EQ(padded.chosen, plain.chosen);
  EXPECT_EQ(padded.weights, plain.weights);
  for (std::size_t pair = 48; pair < 128; ++pair) ASSERT_EQ(padded.copy[pair], no_copy);
}

TEST(ExpertAssignment, random_steps_keep_every_promise) {
  std::mt19937 random(11);
  std::uint64_t rerouted = 0, dropped = 0, to_replica = 0;
  for (int round = 0; round < 600; ++round) {
    const std::size_t experts = 2 + random() % 20;
    Step step{std::vector<std::vector<float>>(1 + random() % 40, std::vector<float>(experts)),
              static_cast<std::uint32_t>(1 + random() % std::min<std::size_t>(experts, 4))};
    for (auto& row : step.logits)
      for (std::size_t e = 0; e < experts; ++e) row[e] = static_cast<float>(random() % 30) / 7.0F + (e < 2 ? 2.0F : 0.0F);
    for (std::size_t e = 0; e < experts; ++e) step.copies.push_back(static_cast<std::uint32_t>(1 + (random() % 4 == 0 ? random() % 3 : 0)));
    Step free = step;
    ExpertControl none;
    none.router_temperature = 0.5F + 0.5F;
    EXPECT_EQ(free.run(none).dropped, 0u);
    std::vector<float> weights(free.weights.size());
    std::vector<std::uint32_t> chosen(free.chosen.size());
    for (std::size_t t = 0; t < step.logits.size(); ++t)
      cpu::choose_experts(step.logits[t], std::span(chosen).subspan(t * step.k, step.k), std::span(weights).subspan(t * step.k, step.k));
    ASSERT_EQ(free.weights, weights) << "no limit: the router's own bits";
    ASSERT_EQ(free.chosen, chosen);

    const OverflowPolicy policy = static_cast<OverflowPolicy>(1 + round % 3);
    const ControlCounts counts = step.run(limited(policy, 0.5 + static_cast<double>(random() % 10) / 8));
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> taken;
    std::uint64_t computed = 0;
    for (std::size_t t = 0; t < step.logits.size(); ++t) {
      std::set<std::uint32_t> mine;
      float sum = 0;
      for (std::size_t i = t * step.k; i < (t + 1) * step.k; ++i) {
        if (step.copy[i] == no_copy) {
          ASSERT_EQ(step.weights[i], 0.0F);
          continue;
        }
        ASSERT_TRUE(mine.insert(step.chosen[i]).second) << "the same expert twice";
        ASSERT_LT(step.copy[i], step.copies[step.chosen[i]]);
        ++taken[{step.chosen[i], step.copy[i]}];
        ++computed;
        sum += step.weights[i];
      }
      if (policy == OverflowPolicy::reroute && !mine.empty()) {
        ASSERT_NEAR(sum, 1.0F, 1e-5F);
      }
    }
    ASSERT_EQ(computed + counts.dropped, counts.wanted);
    std::uint64_t padding = counts.room;
    for (const auto& [place, count] : taken) {
      ASSERT_LE(count, step.assignment.capacity());
      padding -= count;
      ASSERT_EQ(step.assignment.padding_of(place.first, place.second), policy == OverflowPolicy::pad ? step.assignment.capacity() - count : 0);
    }
    ASSERT_EQ(counts.padding, policy == OverflowPolicy::pad ? padding : 0);
    rerouted += counts.rerouted, dropped += counts.dropped, to_replica += counts.to_replica;
  }
  EXPECT_GT(rerouted, 1000u);
  EXPECT_GT(dropped, 1000u);
  EXPECT_GT(to_replica, 10u);
}

}  // namespace
}  // namespace althing::gpu
