// What a GPU tells of traced rows: that it is the step's counts, pair by pair; that its weights follow from its logits; and that tracing changes no
// draw.
#include <cmath>
#include <map>
#include <tuple>

#include "gpu/models/gpt_oss_dummy.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"
#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/engine.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t prompt_tokens = 40, decodes = 6, rows = 3, top_m = 6;

// (layer, expert) -> tokens
using Pairs = std::map<std::tuple<std::uint32_t, std::uint32_t>, std::uint64_t>;

struct Outcome {
  std::vector<TokenId> drawn;                                // by step and row
  std::map<std::uint64_t, std::vector<StepRouting>> traced;  // by request
  std::vector<Pairs> counted, recounted;                     // by step
};

void check_cells(const StepRouting& routing) {
  for (std::size_t cell = 0; cell < routing.tokens.size() * routing.layers; ++cell) {
    const RouterLogit* top = routing.logits.data() + cell * routing.top_m;
    const RoutedExpert* pairs = routing.experts.data() + cell * routing.experts_per_token;
    double sum = 0;
    for (std::uint32_t k = 0; k < routing.experts_per_token; ++k) sum += std::exp(double{top[k].logit} - double{top[0].logit});
    for (std::uint32_t k = 0; k < routing.experts_per_token; ++k) {
      ASSERT_GE(top[k].logit, top[k + 1].logit);
      ASSERT_EQ(pairs[k].expert, top[k].expert);
      ASSERT_EQ(pairs[k].slot, top[k].expert);
      ASSERT_EQ(pairs[k].fate, PairFate::chosen);
      ASSERT_NEAR(pairs[k].weight, std::exp(double{top[k].logit} - double{top[0].logit}) / sum, 1e-5);
    }
  }
  for (const auto& times : routing.nanoseconds)
    for (const RoutingPhase phase : {RoutingPhase::router, RoutingPhase::experts, RoutingPhase::merge})
      EXPECT_GT(times[static_cast<std::size_t>(phase)], 0u) << name_of(phase);
}

void take(const StepResult& result, Outcome& run) {
  for (const DrawnToken& drawn : result.drawn) run.drawn.push_back(drawn.token);
  Pairs &counted = run.counted.emplace_back(), &recounted = run.recounted.emplace_back();
  const StepCounts counts = read_step_counts(result.counts).value();
  for (std::uint32_t l = 0; l < counts.layers.size(); ++l)
    for (const ExpertCount& count : counts.layers[l].experts) counted[{l, count.expert}] += count.tokens;
  std::string_view left = result.routing;
  while (const auto section = next_section(left)) {
    StepRouting routing = read_routing(*section).value();
    for (std::size_t i = 0; i < routing.experts.size(); ++i)
      ++recounted[{static_cast<std::uint32_t>(i / routing.experts_per_token % routing.layers), routing.experts[i].expert}];
    check_cells(routing);
    run.traced[section->request].push_back(std::move(routing));
  }
  EXPECT_TRUE(left.empty());
}

// The last prompt alone is long enough for tiles. Bit `row` of `traced`: the row is.
Outcome run(const std::shared_ptr<const gpu::Model>& model, std::uint32_t traced) {
  EngineOptions options;
  options.device = gpu::Device::cuda;
  auto engine = Engine::create(model, options).value();
  Outcome run;
  StepPlan plan = engine->next_plan();
  for (std::uint32_t row = 0; row < rows; ++row) {
    engine->admit(plan, row, row + 1, {}, prompt_tokens + decodes + 1, (traced >> row & 1) != 0 ? top_m : 0);
    std::vector<TokenId> prompt;
    for (std::uint32_t i = 0; i < prompt_tokens; ++i) prompt.push_back((row * 131 + i * 17) % 997);
    plan.work.push_back(prompt_work(row, 0, std::move(prompt), true));
  }
  for (std::uint32_t i = 0; i <= decodes; ++i) {
    const auto result = engine->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result) return run;
    take(*result, run);
    plan = engine->next_plan();
    for (std::uint32_t row = 0; row < rows; ++row) plan.work.push_back(decode_work(row, prompt_tokens + i));
  }
  return run;
}

TEST(CudaStepTrace, is_the_counts_and_changes_no_draw) {
  ALTHING_NEEDS_GPU();
  const auto model = gpu::dummy_model("20b").value();
  const Outcome untraced = run(model, 0), all = run(model, 7), one = run(model, 2);
  EXPECT_TRUE(untraced.traced.empty());
  EXPECT_EQ(all.counted, untraced.counted);
  EXPECT_EQ(all.recounted, all.counted);
  EXPECT_EQ(all.drawn, untraced.drawn);
  EXPECT_EQ(one.drawn, untraced.drawn);
  ASSERT_EQ(all.traced.size(), rows);
  ASSERT_EQ(one.traced.size(), 1u);
  ASSERT_EQ(one.traced.begin()->first, 2u);
  const std::vector<StepRouting>&alone = one.traced.at(2), &together = all.traced.at(2);
  ASSERT_EQ(alone.size(), decodes + 1);
  for (std::size_t step = 0; step < alone.size(); ++step) {
    EXPECT_EQ(alone[step].experts, together[step].experts);
    EXPECT_EQ(alone[step].logits, together[step].logits);
    EXPECT_EQ(alone[step].tokens, together[step].tokens);
    if (step == 0) continue;
    EXPECT_EQ(alone[step].start, prompt_tokens + step - 1);
    // The token of a decode never left the device before the step was enqueued; it is the draw of the step before.
    EXPECT_EQ(alone[step].tokens, std::vector<TokenId>{untraced.drawn[(step - 1) * rows + 1]});
  }
}

}  // namespace
}  // namespace althing::tests
