// What moe-sweep and load-table share: rows that go on as the dropless model would, each from a prompt of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/commands/moe_sweep.hpp"
#include "gpu/forced_batch.hpp"

namespace althing::actors {

struct MoeModel {
  std::shared_ptr<const gpu::Model> model;
  std::vector<std::vector<TokenId>> prompts;  // never empty, each 1 to moe_prompt_tokens_max tokens
};

inline constexpr std::uint32_t moe_prompt_tokens_max = 64;

// Errors: those of load_gpt_oss and of the tokenizer; not_found or invalid_argument for the file of prompts; invalid_argument for a context that the
// steps do not fit into.
Result<MoeModel> load_moe_model(const MoeBatchSettings& settings);

Result<std::unique_ptr<gpu::ForcedBatch>> start_batch(const MoeModel& model, const MoeBatchSettings& settings, std::uint32_t rows,
                                                      const gpu::ExpertControl& control);

// The next token of every row: drawn at temperature 1 with a seed of the row's own, so that rows that share a prompt part ways.
std::vector<TokenId> draw_rows(const std::vector<float>& logits, std::uint32_t rows, std::uint64_t seed, std::uint32_t position);
// The prompts' last tokens, which the first step takes.
std::vector<TokenId> first_tokens(const MoeModel& model, std::uint32_t rows);

// The value below which the share `part` of the values lies. REQUIRES: values not empty.
double percentile(std::vector<double> values, double part);

}  // namespace althing::actors
