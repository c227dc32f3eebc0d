// The trace of a step against its counts, against the router's logits, and against where placement has put the experts, in every kind of layout.
#include "scheduler/vocabulary/routing_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

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

std::map<std::uint64_t, StepRouting> sections(const std::string& bytes) {
  std::map<std::uint64_t, StepRouting> found;
  std::string_view left = bytes;
  while (const auto section = next_section(left)) {
    EXPECT_FALSE(found.contains(section->request));
    found[section->request] = read_routing(*section).value();
    EXPECT_EQ(section->count, found[section->request].tokens.size());
  }
  EXPECT_TRUE(left.empty());
  return found;
}

// (layer, expert, copy) -> tokens
using Pairs = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint64_t>;

void add(Pairs& to, const StepRouting& routing) {
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    const RoutedExpert& pair = routing.experts[i];
    const auto layer = static_cast<std::uint32_t>(i / routing.experts_per_token % routing.layers);
    if (is_computed(pair.fate)) ++to[{layer, pair.expert, pair.copy}];
  }
}

Pairs counted(const std::string& bytes) {
  Pairs all;
  const StepCounts step = read_step_counts(bytes).value();
  for (std::uint32_t l = 0; l < step.layers.size(); ++l)
    for (const ExpertCount& count : step.layers[l].experts) all[{l, count.expert, count.copy}] += count.tokens;
  return all;
}

StepRouting sample() {
  StepRouting routing;
  routing.start = 40;
  routing.layers = 2;
  routing.top_m = 2;
  routing.experts_per_token = 1;
  routing.tokens = {7, 8, 9};
  routing.nanoseconds = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}};
  for (std::uint32_t i = 0; i < 12; ++i) routing.logits.push_back({i, static_cast<float>(i) / 2});
  for (std::uint16_t i = 0; i < 6; ++i)
    routing.experts.push_back({i, static_cast<std::uint16_t>(i + 1), 1, 2, 3, static_cast<PairFate>(i % pair_fate_count), 0, 0.5F});
  return routing;
}

TEST(RoutingTrace, comes_back_from_its_bytes_and_from_no_others) {
  const StepRouting routing = sample();
  std::string bytes;
  append_routing(bytes, RequestId{5}, routing);
  append_routing(bytes, RequestId{6}, routing);
  const auto found = sections(bytes);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at(6), routing);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    std::string_view left = std::string_view(bytes).substr(0, length);
    std::size_t whole = 0;
    while (const auto section = next_section(left)) whole += read_routing(*section).has_value() ? 1 : 0;
    EXPECT_EQ(whole, length < bytes.size() / 2 ? 0u : 1u) << length;
  }
  std::string_view left = bytes;
  RoutingSection section = next_section(left).value();
  for (const std::uint32_t count : {0u, 2u, 4u, 0xffff'ffffu}) {
    section.count = count;
    EXPECT_FALSE(read_routing(section).has_value()) << count;
  }
  StepRouting wrong = routing;
  wrong.experts[3].fate = static_cast<PairFate>(pair_fate_count);
  bytes.clear();
  append_routing(bytes, RequestId{5}, wrong);
  left = bytes;
  EXPECT_FALSE(read_routing(next_section(left).value()).has_value());
}

TEST(RoutingTrace, pieces_are_the_whole) {
  StepRouting routing = sample();
  routing.recomputed = 2;
  const StepRouting whole = routing;
  EXPECT_EQ(in_pieces(StepRouting(routing), 3), std::vector{whole});
  const auto pieces = in_pieces(std::move(routing), 1);
  ASSERT_EQ(pieces.size(), 3u);
  StepRouting joined = pieces[0];
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(is_whole(pieces[i]));
    EXPECT_EQ(pieces[i].start, 40 + i);
    EXPECT_EQ(pieces[i].recomputed, i < 2 ? 1u : 0u);
    if (i == 0) continue;
    joined.recomputed += pieces[i].recomputed;
    joined.tokens.insert(joined.tokens.end(), pieces[i].tokens.begin(), pieces[i].tokens.end());
    joined.logits.insert(joined.logits.end(), pieces[i].logits.begin(), pieces[i].logits.end());
    joined.experts.insert(joined.experts.end(), pieces[i].experts.begin(), pieces[i].experts.end());
  }
  EXPECT_EQ(joined, whole);
}

class TraceInGrid : public testing::TestWithParam<Grid> {};

// All rows traced: the trace is the counts, pair by pair, and names the rank and slot that placement says.
TEST_P(TraceInGrid, recounts_to_the_counts_of_every_copy) {
  tests::EngineOptions options;
  options.grid = GetParam();
  auto engine = Engine::create(SmallModel::make(), options).value();
  std::vector<std::vector<float>> logits(layers);
  Observer observer;
  observer.router_logits = [&](std::uint32_t layer, std::span<const float> values) { logits[layer].assign(values.begin(), values.end()); };
  engine->executor(0).observe(std::move(observer));
  const auto table = scheduler::expert_table(scheduler::place(GetParam(), shape).value(), experts);
  StepPlan plan = engine->next_plan();
  for (std::uint32_t row = 0; row < 3; ++row) {
    engine->admit(plan, row, row + 1, {}, 60, 4);
    plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 9 + row * 4), true));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto result = engine->run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    Pairs traced;
    std::uint32_t token = 0;
    for (const auto& [request, routing] : sections(result->routing)) {
      EXPECT_EQ(routing.start, i == 0 ? 0 : 9 + (request - 1) * 4 + i - 1);
      if (i == 0) {
        EXPECT_EQ(routing.tokens, small_prompt(static_cast<std::uint32_t>(request - 1), 9 + (request - 1) * 4));
      }
      add(traced, routing);
      for (std::uint32_t t = 0; t < routing.tokens.size(); ++t, ++token)
        for (std::uint32_t l = 0; l < layers; ++l) {
          const float* row = logits[l].data() + std::size_t{token} * experts;
          const RouterLogit* top = routing.logits.data() + (std::size_t{t} * layers + l) * 4;
          const RoutedExpert* pairs = routing.experts.data() + (std::size_t{t} * layers + l) * chosen;
          double softmax = 0, weights = 0;
          for (std::uint32_t m = 0; m < 4; ++m) {
            EXPECT_EQ(top[m].logit, row[top[m].expert]);
            EXPECT_EQ(std::count_if(row, row + experts, [&](float other) { return other > top[m].logit; }), m);
          }
          for (std::uint32_t k = 0; k < chosen; ++k) softmax += std::exp(double{top[k].logit});
          for (std::uint32_t k = 0; k < chosen; ++k) {
            EXPECT_EQ(pairs[k].expert, top[k].expert);
            EXPECT_EQ(pairs[k].chosen, top[k].expert);
            EXPECT_EQ(pairs[k].fate, PairFate::chosen);
            EXPECT_EQ(pairs[k].rank, table[pairs[k].expert].at(pairs[k].copy).rank.value);
            EXPECT_EQ(pairs[k].slot, table[pairs[k].expert].at(pairs[k].copy).slot.value);
            EXPECT_NEAR(pairs[k].weight, std::exp(double{top[k].logit}) / softmax, 1e-6);
            weights += pairs[k].weight;
          }
          EXPECT_NEAR(weights, 1, 1e-6);
        }
      for (const auto& times : routing.nanoseconds)
        for (const RoutingPhase phase : {RoutingPhase::router, RoutingPhase::experts, RoutingPhase::merge})
          EXPECT_GT(times[static_cast<std::size_t>(phase)], 0u) << name_of(phase);
    }
    EXPECT_EQ(traced, counted(result->counts));
    plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 3; ++row) plan.work.push_back(tests::decode_work(row, 9 + row * 4 + i));
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, TraceInGrid,
                         testing::Values(Grid{1, 1, 1, 1, {}}, Grid{2, 1, 2, 2, {}}, Grid{2, 2, 1, 2, {ExpertId{1}}}, Grid{2, 1, 2, 1, {}},
                                         Grid{4, 2, 2, 2, {ExpertId{0}, ExpertId{5}}}, Grid{4, 4, 1, 4, {ExpertId{3}, ExpertId{3}}}));

// Whoever is not traced is in no trace, and a traced neighbour changes nothing of what is computed.
TEST(RoutingTrace, is_of_traced_rows_only_and_changes_no_draw) {
  const auto model = SmallModel::make();
  const auto draws = [&](std::uint32_t traced_rows) {
    auto engine = Engine::create(model, {}).value();
    StepPlan plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 3; ++row) {
      engine->admit(plan, row, row + 1, {}, 60, (traced_rows >> row & 1) != 0 ? 100 : 0);
      plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 20), true));
    }
    const StepResult result = engine->run(plan).value();
    std::vector<std::uint64_t> traced;
    for (const auto& [request, routing] : sections(result.routing)) {
      traced.push_back(request);
      EXPECT_EQ(routing.top_m, experts) << "more logits than there are cannot be told";
      EXPECT_EQ(routing.tokens, small_prompt(static_cast<std::uint32_t>(request - 1), 20));
    }
    std::vector<std::uint64_t> wanted;
    for (std::uint64_t row = 0; row < 3; ++row)
      if ((traced_rows >> row & 1) != 0) wanted.push_back(row + 1);
    EXPECT_EQ(traced, wanted);
    return std::pair(result.drawn, result.counts);
  };
  const auto quiet = draws(0);
  for (const std::uint32_t rows : {1u, 2u, 5u, 7u}) EXPECT_EQ(draws(rows), quiet) << rows;
}

// What experts refuse is told pair by pair as it is in the sums.
TEST(RoutingTrace, tells_what_became_of_every_pair_under_control) {
  const auto model = SmallModel::make();
  for (const OverflowPolicy policy : {OverflowPolicy::reroute, OverflowPolicy::drop}) {
    tests::EngineOptions options;
    options.grid = Grid{2, 2, 1, 1, {}};  // two copies of each
    options.control.overflow = policy;
    options.control.capacity_factor = 0.45;
    options.control.dynamic_k = DynamicK::gap;
    options.control.dynamic_k_value = 1.5F;
    auto engine = Engine::create(model, options).value();
    StepPlan plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 2; ++row) {
      engine->admit(plan, row, row + 1, {}, 60, 2);
      plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 30), true));
    }
    const StepResult result = engine->run(plan).value();
    const StepCounts counts = read_step_counts(result.counts).value();
    Pairs traced;
    std::vector<DivertedPairs> diverted(layers);
    for (const auto& [request, routing] : sections(result.routing)) {
      add(traced, routing);
      for (std::size_t i = 0; i < routing.experts.size(); ++i) {
        const RoutedExpert& pair = routing.experts[i];
        DivertedPairs& sums = diverted[i / chosen % layers];
        sums.to_replica += pair.fate == PairFate::replica ? 1 : 0;
        sums.rerouted += pair.fate == PairFate::rerouted ? 1 : 0;
        sums.dropped += pair.fate == PairFate::dropped ? 1 : 0;
        sums.omitted += pair.fate == PairFate::omitted ? 1 : 0;
        EXPECT_EQ(pair.expert == pair.chosen, pair.fate != PairFate::rerouted);
        EXPECT_EQ(pair.weight == 0, !is_computed(pair.fate));
      }
    }
    EXPECT_EQ(traced, counted(result.counts));
    DivertedPairs all;
    for (std::uint32_t l = 0; l < layers; ++l) {
      EXPECT_EQ(diverted[l], counts.layers[l].diverted) << name_of(policy) << " layer " << l;
      all.to_replica += diverted[l].to_replica;
      all.rerouted += diverted[l].rerouted;
      all.dropped += diverted[l].dropped;
      all.omitted += diverted[l].omitted;
    }
    EXPECT_GT(all.omitted, 0u);
    EXPECT_GT(policy == OverflowPolicy::reroute ? all.rerouted : all.dropped, 0u) << "the test must see what it is about";
    if (policy == OverflowPolicy::reroute) {
      EXPECT_GT(all.to_replica, 0u);
    }
  }
}

TEST(RoutingTrace, a_step_that_was_broken_off_leaves_nothing_for_the_next) {
  tests::EngineOptions options;
  options.ranks = 2;
  auto engine = Engine::create(SmallModel::make(), options).value();
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 40, 2);
  plan.work = {tests::prompt_work(0, 0, small_prompt(1, 10), true)};
  ASSERT_TRUE(engine->run(plan).ok());
  auto segment = SharedSegment::create(2, EpochId{2}).value();
  auto alone = segment.join(RankId{0}, std::chrono::milliseconds{1});
  StepPlan lost = plan;
  lost.epoch = EpochId{2};
  ASSERT_FALSE(engine->executor(0).run(lost, *alone).ok());
  ASSERT_TRUE(engine->enter_epoch(3).ok());
  StepPlan after = engine->next_plan();
  engine->admit(after, 1, 2, {}, 40, 0);
  after.work = {tests::prompt_work(1, 0, small_prompt(2, 10), true)};
  EXPECT_EQ(engine->run(after).value().routing, "");
}

}  // namespace
}  // namespace althing::gpu
