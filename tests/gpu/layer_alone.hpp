// One layer of a model by itself, in float32 on the CPU backend: what it makes of the input that another backend gave it. So a backend's error can be
// measured layer by layer, without what earlier layers did to the input and what later ones make of it.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "tests/gpu/engine.hpp"

namespace althing::tests {

struct LayerValues {
  std::vector<float> router_logits;  // (tokens, experts)
  std::vector<float> output;         // (tokens, hidden): the input of the next layer; of the last layer, what the final norm makes of it
};

// input: (tokens, hidden), one row from position 0 on. Errors: those of Engine.
inline Result<LayerValues> run_layer_alone(const gpu::Model& model, std::size_t layer, std::span<const float> input) {
  const auto tokens = static_cast<std::uint32_t>(input.size() / model.spec.hidden);
  // Token i is position i: its "embedding" is the given input. The next layer only stands there so that its input can be seen.
  auto alone = std::make_shared<gpu::Model>(model);
  gpu::DecoderSpec& spec = alone->spec;
  spec.embedding = {gpu::DType::f32, {tokens, spec.hidden}, reinterpret_cast<const std::byte*>(input.data()), "input"};
  spec.head = spec.embedding;
  spec.vocabulary = tokens;
  spec.layers.assign(model.spec.layers.begin() + static_cast<std::ptrdiff_t>(layer),
                     model.spec.layers.begin() + static_cast<std::ptrdiff_t>(std::min(layer + 2, model.spec.layers.size())));
  EngineOptions options;
  options.threads = 2;
  options.rows_max = 1;
  auto engine = Engine::create(alone, options);
  if (!engine) return engine.error();

  LayerValues values;
  gpu::Observer observer;
  observer.hidden = [&](std::uint32_t at, std::span<const float> seen) {
    if (at == 1) values.output.assign(seen.begin(), seen.end());
  };
  observer.router_logits = [&](std::uint32_t at, std::span<const float> seen) {
    if (at == 0) values.router_logits.assign(seen.begin(), seen.end());
  };
  (*engine)->executor(0).observe(std::move(observer));
  std::vector<TokenId> ids(tokens);
  std::iota(ids.begin(), ids.end(), TokenId{0});
  StepPlan plan = (*engine)->next_plan();
  (*engine)->admit(plan, 0, 1, {}, tokens);
  plan.work.push_back(prompt_work(0, 0, ids, false));
  if (auto result = (*engine)->run(plan); !result) return result.error();
  return values;
}

}  // namespace althing::tests
