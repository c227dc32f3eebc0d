// Totals are exact: every token of a step once, at the expert, the rank and the slot that computed it, whatever layout follows which.
#include "monitoring/expert_totals.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/monitoring/expert_samples.hpp"

namespace althing::monitoring {
namespace {

using testing::ElementsAre;

// Two ranks; rank 1 holds a copy of expert 0 in its slot 2.
ExpertPlaces with_a_replica() { return {{{0, 0}, {1, 2}}, {{0, 1}}, {{1, 0}}, {{1, 1}}}; }
ExpertPlaces on_one_rank() { return {{{0, 0}}, {{0, 1}}, {{0, 2}}, {{0, 3}}}; }

StepCounts step_with_a_replica() {
  StepCounts step = tests::step_of({{3, 1, 0, 0}}, 1);
  step.layers[0].experts[0].tokens = 2;
  step.layers[0].experts.insert(step.layers[0].experts.begin() + 1, {0, 1, 1, 1u << 31});
  return step;
}

TEST(ExpertTotals, copies_are_one_expert_and_two_slots) {
  ExpertTotals totals({2, 1, 4, 1});
  ASSERT_TRUE(totals.use_layout(with_a_replica()));
  ASSERT_TRUE(totals.add(step_with_a_replica()));
  EXPECT_THAT(totals.expert_tokens(), ElementsAre(3, 1, 0, 0));
  EXPECT_THAT(totals.rank_tokens(), ElementsAre(3, 1));
  EXPECT_THAT(totals.slot_tokens().at({0, 0, 0}), ElementsAre(2));
  EXPECT_THAT(totals.slot_tokens().at({0, 1, 2}), ElementsAre(1));
  EXPECT_EQ(totals.steps(), 1u);
  EXPECT_EQ(totals.tokens(), 4u);
}

TEST(ExpertTotals, a_new_layout_keeps_what_was_counted_and_counts_on_elsewhere) {
  ExpertTotals totals({2, 1, 4, 1});
  totals.use_layout(with_a_replica());
  totals.add(step_with_a_replica());
  ASSERT_TRUE(totals.use_layout(on_one_rank()));
  ASSERT_TRUE(totals.add(tests::step_of({{0, 0, 5, 2}}, 1)));
  totals.use_layout(with_a_replica());
  totals.add(step_with_a_replica());
  EXPECT_THAT(totals.expert_tokens(), ElementsAre(6, 2, 5, 2));
  EXPECT_THAT(totals.rank_tokens(), ElementsAre(6 + 7, 2));
  EXPECT_THAT(totals.slot_tokens().at({2, 0, 2}), ElementsAre(5));
  EXPECT_THAT(totals.slot_tokens().at({0, 1, 2}), ElementsAre(2)) << "the same slot as before";
}

TEST(ExpertTotals, what_does_not_fit_changes_nothing) {
  ExpertTotals totals({2, 1, 4, 1});
  EXPECT_FALSE(totals.add(tests::step_of({{1, 0, 0, 0}}, 1))) << "no layout is known";
  EXPECT_FALSE(totals.use_layout({{{0, 0}}})) << "one expert of four";
  EXPECT_FALSE(totals.use_layout({{{2, 0}}, {}, {}, {}})) << "rank 2 of two";
  totals.use_layout(on_one_rank());
  EXPECT_FALSE(totals.add(step_with_a_replica())) << "a copy that this layout does not have";
  EXPECT_FALSE(totals.add(tests::step_of({{1, 0, 0, 0}, {1, 0, 0, 0}}, 1))) << "two layers";
  EXPECT_FALSE(totals.add(tests::step_of({{2, 2, 0, 0}}, 2))) << "two experts a token";
  EXPECT_THAT(totals.expert_tokens(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(totals.steps(), 0u);
}

TEST(ExpertTotals, every_sum_is_the_same_over_random_steps_and_layouts) {
  std::mt19937 random(11);
  ExpertTotals totals({3, 2, 8, 2});
  std::uint64_t tokens = 0;
  for (int round = 0; round < 300; ++round) {
    if (round % 25 == 0) {
      ExpertPlaces places;
      for (std::uint32_t expert = 0; expert < 8; ++expert) places.push_back({{static_cast<std::uint32_t>(random() % 3), expert}});
      ASSERT_TRUE(totals.use_layout(places));
    }
    const StepCounts step = tests::random_step(random, 2, 8, 2, static_cast<std::uint32_t>(1 + random() % 20));
    tokens += step.tokens;
    ASSERT_TRUE(totals.add(step));
  }
  EXPECT_EQ(totals.tokens(), tokens);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::uint64_t experts = 0, ranks = 0, slots = 0;
    for (std::size_t e = 0; e < 8; ++e) experts += totals.expert_tokens()[layer * 8 + e];
    for (std::size_t r = 0; r < 3; ++r) ranks += totals.rank_tokens()[layer * 3 + r];
    for (const auto& [key, by_layer] : totals.slot_tokens()) slots += by_layer[layer];
    EXPECT_EQ(experts, 2 * tokens);
    EXPECT_EQ(ranks, 2 * tokens);
    EXPECT_EQ(slots, 2 * tokens);
  }
}

TEST(ExpertTotals, polled_gains_are_counted_at_the_rank_s_own_slots) {
  ExpertTotals totals({2, 1, 4, 1});
  totals.use_layout(with_a_replica());
  const std::vector<std::uint64_t> gained{2, 0, 0, 5};
  totals.add_of_rank(1, gained);
  EXPECT_THAT(totals.expert_tokens(), ElementsAre(2, 0, 0, 5));
  EXPECT_THAT(totals.rank_tokens(), ElementsAre(0, 7));
  EXPECT_THAT(totals.slot_tokens().at({0, 1, 2}), ElementsAre(2));
  EXPECT_THAT(totals.slot_tokens().at({0, 0, 0}), ElementsAre(0));
}

TEST(FixedSum, carries_and_does_not_overflow) {
  FixedSum sum;
  for (int i = 0; i < 5; ++i) sum.add(0xc0000000u);  // 0.75
  EXPECT_EQ(sum.whole, 3u);
  EXPECT_EQ(sum.fraction, 0xc0000000u);
  for (int i = 0; i < 8; ++i) sum.add(std::uint64_t{1} << 63);
  EXPECT_EQ(sum.whole, 3 + (std::uint64_t{1} << 34));
}

}  // namespace
}  // namespace althing::monitoring
