// config.json of a gpt-oss model as numbers that are known to be in range and to fit together. Three spellings are read: Hugging Face with
// rope_theta and rope_scaling, Hugging Face with rope_parameters, and the original release's keys. Options this build cannot do are refused by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gpu/models/rotary.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::gpu {

struct GptOssConfig {
  std::uint32_t hidden = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t context_tokens_max = 0;
  std::vector<std::uint32_t> windows;  // one a layer, in tokens; 0: full attention
  RotaryConfig rotary;
  float norm_epsilon = 1e-5F;
  float swiglu_limit = 7.0F;
  bool tied_head = false;  // the head is the embedding
  std::vector<TokenId> stop_tokens;
};

// `file` is what messages call it. Errors: corrupt (JSON, a missing key, a number out of range, numbers that do not fit together),
// unsupported (another architecture or option); `field` is the key.
Result<GptOssConfig> parse_gpt_oss_config(std::string_view file, std::string_view json);

// eos_token_id of a generation_config.json: a number or a list; empty when the key is absent. Errors: corrupt.
Result<std::vector<TokenId>> parse_stop_tokens(std::string_view file, std::string_view json, std::uint32_t vocabulary);

}  // namespace althing::gpu
