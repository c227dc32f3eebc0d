// Bytes as config.json and generation_config.json. What is accepted must hold the relations that the rest of the engine divides and allocates by,
// and give finite rotary frequencies.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "gpu/models/gpt_oss_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace althing;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokens = gpu::parse_stop_tokens("fuzz", text, 256);
  if (tokens)
    for (const TokenId token : *tokens)
      if (token >= 256) std::abort();
  const auto config = gpu::parse_gpt_oss_config("fuzz", text);
  if (!config) {
    if (config.error().message.empty() || config.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const gpu::GptOssConfig& c = *config;
  if (c.hidden == 0 || c.intermediate == 0 || c.vocabulary == 0 || c.context_tokens_max == 0 || c.windows.empty()) std::abort();
  if (c.kv_heads == 0 || c.query_heads % c.kv_heads != 0 || c.head_dim % 2 != 0) std::abort();
  if (c.experts_per_token == 0 || c.experts_per_token > c.experts) std::abort();
  const gpu::Rotary rotary = gpu::make_rotary(c.head_dim, c.rotary);
  if (rotary.inverse_frequencies.size() != c.head_dim / 2 || !std::isfinite(rotary.attention_factor)) std::abort();
  for (const float frequency : rotary.inverse_frequencies)
    if (!std::isfinite(frequency) || frequency < 0.0F) std::abort();
  return 0;
}
