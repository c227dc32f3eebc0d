// Whole steps under an ExpertControl: every layout decides alike, padding changes nothing but cost, counts are the assignment's, and a new epoch
// starts the adaptive factor afresh.
#include <gtest/gtest.h>

#include <random>

#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::decode_work;
using tests::Engine;
using tests::EngineOptions;
using tests::prompt_work;
using tests::SmallModel;

constexpr std::uint32_t rows = 6, prompt_tokens = 9, decode_steps = 12;

struct Outcome {
  std::vector<StepResult> results;
  std::vector<float> logits;
  std::vector<ControlCounts> counts;  // by layer
  std::uint64_t computed = 0;         // pairs on all ranks
};

// Prompts of six rows in one step, then steps of one token each.
Outcome run(Engine& engine) {
  Outcome outcome;
  for (std::size_t r = 0; r < engine.ranks(); ++r) {
    Observer observer;
    observer.logits = [&outcome, r](std::span<const float> values) {
      if (r == 0) outcome.logits.insert(outcome.logits.end(), values.begin(), values.end());
    };
    engine.executor(r).observe(observer);
  }
  std::mt19937 random(3);
  for (std::uint32_t s = 0; s <= decode_steps; ++s) {
    StepPlan plan = engine.next_plan();
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (s > 0) {
        plan.work.push_back(decode_work(row, prompt_tokens + s - 1));
        continue;
      }
      engine.admit(plan, row, row + 1, {}, prompt_tokens + decode_steps);
      std::vector<TokenId> prompt(prompt_tokens);
      for (TokenId& token : prompt) token = static_cast<TokenId>(random() % 101);
      plan.work.push_back(prompt_work(row, 0, prompt, true));
    }
    auto result = engine.run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result) return outcome;
    outcome.results.push_back(std::move(*result));
  }
  outcome.counts = engine.executor(0).control_counts();
  for (std::size_t r = 0; r < engine.ranks(); ++r) {
    EXPECT_EQ(engine.executor(r).control_counts(), outcome.counts) << "rank " << r << " decided otherwise";
    for (const std::uint64_t tokens : engine.executor(r).expert_counts().tokens) outcome.computed += tokens;
  }
  return outcome;
}

Outcome run(const ExpertControl& control, const Grid& grid = {1, 1, 1, 1, {}}) {
  EngineOptions options;
  options.grid = grid;
  options.control = control;
  auto engine = Engine::create(SmallModel::make(), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return engine.ok() ? run(**engine) : Outcome{};
}

ExpertControl limited(OverflowPolicy policy, double factor) {
  ExpertControl control;
  control.overflow = policy;
  control.capacity_factor = factor;
  return control;
}

ControlCounts sum(const Outcome& outcome) {
  ControlCounts all;
  for (const ControlCounts& layer : outcome.counts) all += layer;
  return all;
}

TEST(ControlledExecutor, room_for_everybody_gives_the_bits_of_no_limit) {
  const Outcome free = run(ExpertControl{});
  EXPECT_EQ(sum(free), ControlCounts{});
  for (const OverflowPolicy policy : {OverflowPolicy::reroute, OverflowPolicy::drop, OverflowPolicy::pad}) {
    const Outcome roomy = run(limited(policy, 64));
    EXPECT_EQ(roomy.logits, free.logits) << name_of(policy);
    EXPECT_EQ(sum(roomy).dropped + sum(roomy).rerouted, 0u);
    EXPECT_EQ(roomy.computed, free.computed) << "empty rows are not tokens";
    EXPECT_EQ(sum(roomy).padding > 0, policy == OverflowPolicy::pad);
  }
}

TEST(ControlledExecutor, every_layout_sends_tokens_to_the_same_experts) {
  for (const OverflowPolicy policy : {OverflowPolicy::reroute, OverflowPolicy::drop, OverflowPolicy::pad}) {
    ExpertControl control = limited(policy, 1.0);
    control.adaptive = true;
    const Outcome one = run(control);
    EXPECT_GT(sum(one).rerouted + sum(one).dropped, 20u) << name_of(policy);
    EXPECT_EQ(one.computed, sum(one).wanted - sum(one).dropped);
    for (const Grid& grid : {Grid{2, 2, 1, 2, {}}, Grid{4, 4, 1, 4, {}}, Grid{4, 4, 1, 2, {}}}) {
      const Outcome many = run(control, grid);
      if (grid.ep == grid.world) {
        EXPECT_EQ(many.logits, one.logits) << name_of(policy) << " over " << grid.world << " ranks";
        EXPECT_EQ(many.counts, one.counts);
      }
      EXPECT_EQ(many.computed, sum(many).wanted - sum(many).dropped) << "each pair is computed once, whatever copies there are";
    }
  }
}

TEST(ControlledExecutor, padding_costs_rows_and_changes_no_bit) {
  const Outcome drop = run(limited(OverflowPolicy::drop, 0.75)), pad = run(limited(OverflowPolicy::pad, 0.75));
  EXPECT_EQ(pad.logits, drop.logits);
  EXPECT_EQ(sum(pad).dropped, sum(drop).dropped);
  EXPECT_EQ(sum(pad).padding, sum(pad).room - pad.computed);
  ExpertControl multiple = limited(OverflowPolicy::pad, 0.75);
  multiple.capacity_multiple = 128;  // more rows than the step has tokens
  const Outcome wide = run(multiple);
  EXPECT_EQ(sum(wide).dropped, 0u);
  EXPECT_EQ(wide.logits, run(ExpertControl{}).logits);
}

TEST(ControlledExecutor, dynamic_k_and_temperature_change_the_model_alone) {
  ExpertControl all;
  all.dynamic_k = DynamicK::gap;
  all.dynamic_k_value = 1e6F;
  const Outcome free = run(ExpertControl{});
  EXPECT_EQ(run(all).logits, free.logits) << "nobody is omitted";
  all.dynamic_k_value = 0.05F;
  const Outcome few = run(all);
  EXPECT_GT(sum(few).omitted, 100u);
  EXPECT_EQ(few.computed, sum(few).wanted - sum(few).omitted);
  EXPECT_NE(few.logits, free.logits);
  ExpertControl warm;
  warm.router_temperature = 1.3F;
  EXPECT_NE(run(warm).logits, free.logits);
  EXPECT_EQ(run(warm).computed, free.computed);
}

TEST(ControlledExecutor, an_epoch_forgets_what_the_factor_had_learnt) {
  ExpertControl control = limited(OverflowPolicy::reroute, 1.0);
  control.adaptive = true;
  EngineOptions options;
  options.control = control;
  auto engine = Engine::create(SmallModel::make(), options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const Outcome first = run(**engine);
  ASSERT_TRUE((*engine)->enter_epoch(2));
  EXPECT_EQ(run(**engine).logits, first.logits) << "as a rank that was started for this epoch computes it";
}

TEST(ControlledExecutor, what_cannot_be_is_refused) {
  EngineOptions options;
  options.control.capacity_factor = -1;
  const auto engine = Engine::create(SmallModel::make(), options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().field, "capacity-factor");
}

}  // namespace
}  // namespace althing::gpu
