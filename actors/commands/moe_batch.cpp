// See the header.
#include "actors/commands/moe_batch.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>
#include <utility>

#include "actors/engine_setup.hpp"
#include "gpu/sampling.hpp"
#include "scheduler/placement.hpp"

namespace althing::actors {
namespace {

constexpr std::string_view own_prompts[] = {
    "The lighthouse keeper counted the ships that passed before",
    "To make bread you need flour, water, salt and",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "In 1905 a clerk at the patent office wrote four papers that",
    "Question: what is 17 times 23? Answer:",
    "Der Zug nach Hamburg faehrt heute um",
    "{\"name\": \"Ada\", \"born\": 1815, \"field\": \"",
    "Once the rain had stopped, the children",
};

Result<std::vector<std::string>> texts_of(const std::string& file) {
  if (file.empty()) return std::vector<std::string>(std::begin(own_prompts), std::end(own_prompts));
  std::ifstream in(file);
  if (!in) return Error{ErrorCode::not_found, "the file of prompts " + file + " cannot be read; give a text file with one prompt a line", "prompts"};
  std::vector<std::string> texts;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) texts.push_back(std::move(line));
  if (texts.empty()) return Error{ErrorCode::invalid_argument, "the file of prompts " + file + " has no line of text", "prompts"};
  return texts;
}

}  // namespace

Result<MoeModel> load_moe_model(const MoeBatchSettings& settings) {
  ServeSettings serve;
  serve.model = settings.model;
  auto texts = texts_of(settings.prompts);
  if (!texts) return texts.error();
  auto format = chat_format(serve);
  if (!format) return format.error();
  auto model = gpu::load_gpt_oss(settings.model);
  if (!model) return model.error();
  const std::uint32_t context = moe_prompt_tokens_max + settings.steps;
  if (context > (*model)->spec.context_tokens_max)
    return Error{ErrorCode::invalid_argument,
                 std::to_string(settings.steps) + " steps after prompts of up to " + std::to_string(moe_prompt_tokens_max) +
                     " tokens are more than the model's context of " + std::to_string((*model)->spec.context_tokens_max) + "; use fewer --steps",
                 "steps"};
  MoeModel loaded{std::move(*model), {}};
  for (const std::string& text : *texts) {
    std::vector<TokenId> tokens = format->tokenizer()->encode(text);
    tokens.resize(std::min<std::size_t>(tokens.size(), moe_prompt_tokens_max));
    loaded.prompts.push_back(std::move(tokens));
  }
  return loaded;
}

Result<std::unique_ptr<gpu::ForcedBatch>> start_batch(const MoeModel& model, const MoeBatchSettings& settings, std::uint32_t rows,
                                                      const gpu::ExpertControl& control) {
  const gpu::DecoderSpec& spec = model.model->spec;
  auto placements = scheduler::place(1, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements) return placements.error();
  auto batch = gpu::ForcedBatch::create(model.model, {placements->front(), rows, moe_prompt_tokens_max + settings.steps, settings.threads, control});
  if (!batch) return batch;
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t row = 0; row < rows; ++row) {
    prompts.push_back(model.prompts[row % model.prompts.size()]);
    // The last token is the first step's; a prompt of one token stands twice.
    if (prompts.back().size() > 1) prompts.back().pop_back();
  }
  if (auto status = (*batch)->prefill(prompts); !status) return status.error();
  return batch;
}

std::vector<TokenId> draw_rows(const std::vector<float>& logits, std::uint32_t rows, std::uint64_t seed, std::uint32_t position) {
  const std::size_t vocabulary = logits.size() / rows;
  std::vector<TokenId> drawn;
  for (std::uint32_t row = 0; row < rows; ++row) {
    SamplingParameters sampling;
    sampling.temperature = 1.0F;
    sampling.seed = seed + row;
    drawn.push_back(gpu::draw(std::span(logits).subspan(row * vocabulary, vocabulary), sampling, position).value_or(0));
  }
  return drawn;
}

std::vector<TokenId> first_tokens(const MoeModel& model, std::uint32_t rows) {
  std::vector<TokenId> tokens;
  for (std::uint32_t row = 0; row < rows; ++row) tokens.push_back(model.prompts[row % model.prompts.size()].back());
  return tokens;
}

double percentile(std::vector<double> values, double part) {
  const auto at = values.begin() + std::lround(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace althing::actors
