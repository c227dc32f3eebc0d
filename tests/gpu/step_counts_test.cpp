// What a step's result says of experts, against a recount from the router's logits in double precision and against what each rank has computed
// itself, in every kind of layout.
#include "gpu/cpu/step_counter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "gpu/executor.hpp"
#include "scheduler/placement.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::Engine;
using tests::small_prompt;
using tests::SmallModel;

constexpr std::uint32_t layers = 3, experts = 6, chosen = 2;
constexpr ModelShape shape{8, 2, experts, 101};

// The logits of a step as rank 0's router shows them, by layer.
using Logits = std::vector<std::vector<float>>;

struct Recount {
  std::vector<std::uint64_t> tokens = std::vector<std::uint64_t>(experts);
  std::vector<double> weights = std::vector<double>(experts), by_place = std::vector<double>(chosen);
  double entropy = 0, variance = 0, margin = 0;
};

Recount recount(const std::vector<float>& logits) {
  Recount all;
  for (std::size_t t = 0; t * experts < logits.size(); ++t) {
    const float* row = logits.data() + t * experts;
    std::vector<std::uint32_t> order{0, 1, 2, 3, 4, 5};
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return row[a] > row[b]; });
    double softmax = 0, top = 0, mean = 0;
    for (std::uint32_t e = 0; e < experts; ++e) softmax += std::exp(double{row[e]}), mean += row[e] / double{experts};
    for (std::uint32_t i = 0; i < chosen; ++i) top += std::exp(double{row[order[i]]});
    for (std::uint32_t e = 0; e < experts; ++e) {
      const double p = std::exp(double{row[e]}) / softmax;
      all.entropy -= p * std::log(p);
      all.variance += (row[e] - mean) * (row[e] - mean) / experts;
    }
    all.margin += row[order[0]] - row[order[1]];
    for (std::uint32_t i = 0; i < chosen; ++i) {
      ++all.tokens[order[i]];
      all.weights[order[i]] += std::exp(double{row[order[i]]}) / top;
      all.by_place[i] += std::exp(double{row[order[i]]}) / top;
    }
  }
  return all;
}

void expect_recounted(const StepCounts& step, const Logits& logits) {
  for (std::uint32_t l = 0; l < layers; ++l) {
    const Recount expected = recount(logits[l]);
    const LayerCounts& layer = step.layers[l];
    std::vector<std::uint64_t> tokens(experts);
    std::vector<double> weights(experts);
    for (const ExpertCount& count : layer.experts) {
      tokens[count.expert] += count.tokens;
      weights[count.expert] += static_cast<double>(count.gate_weight) / gate_weight_unit;
    }
    EXPECT_EQ(tokens, expected.tokens) << "layer " << l;
    const double n = step.tokens;
    EXPECT_EQ(layer.router.tokens, step.tokens);
    for (std::uint32_t e = 0; e < experts; ++e) EXPECT_NEAR(weights[e], expected.weights[e], 1e-6 * n);
    for (std::uint32_t i = 0; i < chosen; ++i)
      EXPECT_NEAR(static_cast<double>(layer.gate_weights[i]) / gate_weight_unit, expected.by_place[i], 1e-6 * n);
    EXPECT_NEAR(static_cast<double>(layer.router.entropy) / router_figure_unit, expected.entropy, 1e-5 * n);
    EXPECT_NEAR(static_cast<double>(layer.router.variance) / router_figure_unit, expected.variance, 1e-5 * n);
    EXPECT_NEAR(static_cast<double>(layer.router.margin) / router_figure_unit, expected.margin, 1e-5 * n);
  }
}

class StepCountsInGrid : public testing::TestWithParam<Grid> {
 protected:
  void SetUp() override {
    tests::EngineOptions options;
    options.grid = GetParam();
    engine_ = Engine::create(model_, options).value();
    Observer observer;
    observer.router_logits = [this](std::uint32_t layer, std::span<const float> values) { logits_[layer].assign(values.begin(), values.end()); };
    engine_->executor(0).observe(std::move(observer));
  }
  StepCounts run(const StepPlan& plan) {
    const auto result = engine_->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return read_step_counts(result->counts).value();
  }

  std::shared_ptr<Model> model_ = SmallModel::make();
  std::unique_ptr<Engine> engine_;
  Logits logits_ = Logits(layers);
};

TEST_P(StepCountsInGrid, one_rank_tells_for_all_what_each_has_computed) {
  const auto table = scheduler::expert_table(scheduler::place(GetParam(), shape).value(), experts);
  std::vector<std::vector<std::uint64_t>> told(engine_->ranks(), std::vector<std::uint64_t>(layers * experts));
  StepPlan plan = engine_->next_plan();
  for (std::uint32_t row = 0; row < 3; ++row) {
    engine_->admit(plan, row, row + 1, {}, 60);
    plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 17 + row * 8), true));
  }
  for (std::uint32_t i = 0; i < 6; ++i) {
    const StepCounts step = run(plan);
    EXPECT_EQ(step.tokens, i == 0 ? 75u : 3u);
    expect_recounted(step, logits_);
    for (std::uint32_t l = 0; l < layers; ++l)
      for (const ExpertCount& count : step.layers[l].experts)
        told[table[count.expert].at(count.copy).rank.value][l * experts + count.expert] += count.tokens;
    plan = engine_->next_plan();
    for (std::uint32_t row = 0; row < 3; ++row) plan.work.push_back(tests::decode_work(row, 17 + row * 8 + i));
  }
  for (std::size_t rank = 0; rank < engine_->ranks(); ++rank)
    EXPECT_EQ(told[rank], engine_->executor(rank).expert_counts().tokens) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Grids, StepCountsInGrid,
                         testing::Values(Grid{1, 1, 1, 1, {}}, Grid{2, 1, 2, 2, {}}, Grid{2, 2, 1, 2, {ExpertId{1}}}, Grid{2, 1, 2, 1, {}},
                                         Grid{4, 2, 2, 2, {ExpertId{0}, ExpertId{5}}}, Grid{4, 4, 1, 4, {ExpertId{3}, ExpertId{3}}}));

// Where bits do not change, sums do not either, to the last one: that is what fixed point is for.
TEST(StepCounts, sums_are_the_same_bits_in_every_layout_of_a_tp) {
  const auto model = SmallModel::make();
  const auto sums = [&](const Grid& grid) {
    tests::EngineOptions options;
    options.grid = grid;
    auto engine = Engine::create(model, options).value();
    StepPlan plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 2; ++row) {
      engine->admit(plan, row, row + 1, {}, 60);
      plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 40), true));
    }
    StepCounts step = read_step_counts(engine->run(plan).value().counts).value();
    for (LayerCounts& layer : step.layers) {
      std::map<std::uint16_t, ExpertCount> whole;
      for (const ExpertCount& count : layer.experts) {
        ExpertCount& sum = whole[count.expert];
        sum = {count.expert, 0, sum.tokens + count.tokens, sum.gate_weight + count.gate_weight};
      }
      layer.experts.clear();
      for (const auto& [expert, count] : whole) layer.experts.push_back(count);
    }
    return step;
  };
  const StepCounts whole = sums({1, 1, 1, 1, {}});
  EXPECT_EQ(sums({2, 2, 1, 2, {}}), whole);
  EXPECT_EQ(sums({2, 2, 1, 1, {}}), whole);
  EXPECT_EQ(sums({4, 4, 1, 2, {ExpertId{2}}}), whole);
}

TEST(StepCounts, chunks_count_as_much_as_the_whole) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(3, 30);
  const auto counted = [&](std::size_t chunk) {
    auto engine = Engine::create(model, {}).value();
    std::vector<std::uint64_t> sum(layers * experts);
    StepPlan plan = engine->next_plan();
    engine->admit(plan, 0, 1, {}, 40);
    for (std::size_t from = 0; from < tokens.size(); from += chunk) {
      const std::size_t count = std::min(chunk, tokens.size() - from);
      plan.work = {tests::prompt_work(0, static_cast<std::uint32_t>(from), std::span(tokens).subspan(from, count), from + count == tokens.size())};
      const auto result = engine->run(plan);
      EXPECT_TRUE(result.ok());
      const StepCounts step = read_step_counts(result->counts).value();
      for (std::uint32_t l = 0; l < layers; ++l)
        for (const ExpertCount& count_of : step.layers[l].experts) sum[l * experts + count_of.expert] += count_of.tokens;
      plan = engine->next_plan();
    }
    return sum;
  };
  const auto whole = counted(30);
  EXPECT_EQ(counted(7), whole);
  EXPECT_EQ(counted(1), whole);
}

TEST(StepCounts, a_token_without_finite_logits_is_counted_and_is_in_no_mean) {
  auto model = SmallModel::make();
  std::vector<std::byte> table(std::size_t{101} * 160 * 2);
  std::memcpy(table.data(), model->spec.embedding.data, table.size());
  const std::uint16_t nan = 0x7fc0;  // token 7 alone has a NaN embedding
  std::memcpy(table.data() + 7 * 160 * 2, &nan, 2);
  model->spec.embedding.data = table.data();
  auto engine = Engine::create(model, {}).value();
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 20);
  plan.work = {tests::prompt_work(0, 0, std::vector<TokenId>{1, 2, 7}, true)};
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->drawn[0].nonfinite);
  const StepCounts step = read_step_counts(result->counts).value();
  EXPECT_EQ(step.tokens, 3u);
  EXPECT_EQ(step.layers[0].router.tokens, 2u);
  EXPECT_NEAR(static_cast<double>(step.layers[0].gate_weights[0] + step.layers[0].gate_weights[1]) / gate_weight_unit, 2.0, 1e-6);
}

TEST(StepCounts, a_step_without_tokens_or_without_the_order_to_count_brings_none) {
  const auto model = SmallModel::make();
  auto engine = Engine::create(model, {}).value();
  StepPlan plan = engine->next_plan();
  plan.scrub = {{DpGroup{0}, PageId{0}}};
  EXPECT_EQ(engine->run(plan).value().counts, "");
  tests::EngineOptions options;
  options.count_steps = false;
  auto quiet = Engine::create(model, options).value();
  plan = quiet->next_plan();
  quiet->admit(plan, 0, 1, {}, 20);
  plan.work = {tests::prompt_work(0, 0, small_prompt(1, 5), true)};
  EXPECT_EQ(quiet->run(plan).value().counts, "");
}

}  // namespace
}  // namespace althing::gpu
