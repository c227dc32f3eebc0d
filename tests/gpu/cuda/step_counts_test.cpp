// What a step's result says of experts where a GPU computes it: the same sums from captured graphs, from steps of prompts, and one by one or
// together.
#include "scheduler/vocabulary/expert_counts.hpp"

#include <map>

#include "gpu/models/gpt_oss_dummy.hpp"
#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/engine.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t prompt_tokens = 40, decodes = 6;

struct Sums {
  std::uint64_t tokens = 0;
  std::vector<std::uint64_t> words;  // of all layers: experts' tokens and gate weights, places, figures

  void add(const StepCounts& step) {
    tokens += step.tokens;
    std::size_t at = 0;
    const auto put = [&](std::uint64_t value) {
      if (words.size() == at) words.push_back(0);
      words[at++] += value;
    };
    for (const LayerCounts& layer : step.layers) {
      std::map<std::uint32_t, ExpertCount> experts;
      for (const ExpertCount& count : layer.experts) experts[count.expert] = count;
      for (std::uint32_t e = 0; e < step.experts; ++e) put(experts[e].tokens), put(experts[e].gate_weight);
      for (const std::uint64_t weight : layer.gate_weights) put(weight);
      for (const std::uint64_t value : {layer.router.tokens, layer.router.entropy, layer.router.variance, layer.router.margin}) put(value);
    }
  }
};

// Rows' prompts in chunks, then decodes, `together` rows a step.
Sums run(const std::shared_ptr<const gpu::Model>& model, std::uint32_t rows, std::uint32_t together, std::uint32_t chunk, bool watched) {
  EngineOptions options;
  options.device = gpu::Device::cuda;
  auto engine = Engine::create(model, options).value();
  gpu::Observer observer;
  if (watched) observer.router_logits = [](std::uint32_t, std::span<const float>) {};
  engine->executor(0).observe(std::move(observer));
  Sums sums;
  StepPlan plan = engine->next_plan();
  for (std::uint32_t row = 0; row < rows; ++row) engine->admit(plan, row, row + 1, {}, prompt_tokens + decodes + 1);
  const auto step = [&] {
    const auto result = engine->run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    const auto counts = read_step_counts(result->counts);
    ASSERT_TRUE(counts);
    sums.add(*counts);
    plan = engine->next_plan();
  };
  for (std::uint32_t first = 0; first < rows; first += together) {
    const std::uint32_t end = std::min(rows, first + together);
    for (std::uint32_t start = 0; start < prompt_tokens; start += chunk) {
      for (std::uint32_t row = first; row < end; ++row) {
        std::vector<TokenId> tokens;
        for (std::uint32_t i = start; i < std::min(prompt_tokens, start + chunk); ++i) tokens.push_back((row * 131 + i * 17) % 997);
        plan.work.push_back(prompt_work(row, start, std::move(tokens), start + chunk >= prompt_tokens));
      }
      step();
    }
    for (std::uint32_t i = 0; i < decodes; ++i) {
      for (std::uint32_t row = first; row < end; ++row) plan.work.push_back(decode_work(row, prompt_tokens + i));
      step();
    }
  }
  std::uint64_t told = 0;
  for (const std::uint64_t tokens : engine->executor(0).expert_counts().tokens) told += tokens;
  EXPECT_EQ(told, sums.tokens * model->spec.layers.size() * model->spec.layers[0].moe.router.experts_per_token);
  return sums;
}

TEST(CudaStepCounts, no_way_to_compute_tokens_changes_a_sum) {
  ALTHING_NEEDS_GPU();
  const auto model = gpu::dummy_model("20b").value();
  const Sums alone = run(model, 5, 1, prompt_tokens, false);
  EXPECT_EQ(alone.tokens, 5 * (prompt_tokens + decodes));
  EXPECT_EQ(run(model, 5, 5, prompt_tokens, false).words, alone.words) << "together";
  EXPECT_EQ(run(model, 5, 5, 7, false).words, alone.words) << "in chunks";
  EXPECT_EQ(run(model, 5, 2, prompt_tokens, true).words, alone.words) << "watched";
}

}  // namespace
}  // namespace althing::tests
