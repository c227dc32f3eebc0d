// The bounds are generous (several times any released model) and small enough that products of three of them fit 64 bits.
#include "gpu/models/gpt_oss_config.hpp"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "gpu/models/config_reader.hpp"
#include "gpu/weights/message.hpp"

namespace althing::gpu {

namespace {

namespace dom = simdjson::dom;

constexpr std::uint32_t layers_max = 1024;
constexpr std::uint32_t width_max = 1u << 17;  // hidden, intermediate
constexpr std::uint32_t heads_max = 1024;
constexpr std::uint32_t head_dim_max = 1024;
constexpr std::uint32_t experts_max = 4096;
constexpr std::uint32_t vocabulary_max = 1u << 24;
constexpr std::uint32_t context_max = 1u << 24;  // float holds every position below exactly
constexpr std::uint32_t stop_tokens_max = 64;
constexpr std::string_view eos_key = "eos_token_id";

void check_architecture(ConfigReader& r) {
  if (r.has("model_type")) {
    if (const auto type = r.text("model_type", ""); type != "gpt_oss")
      r.fail(ErrorCode::unsupported, "model_type", fmt::format("is '{}'; this build runs gpt_oss", printable(type)));
    return;
  }
  if (const auto names = r.list("architectures")) {
    bool found = false;
    for (const dom::element name : *names) {
      std::string_view text;
      found |= name.get(text) == simdjson::SUCCESS && text == "GptOssForCausalLM";
    }
    if (!found) r.fail(ErrorCode::unsupported, "architectures", "does not name GptOssForCausalLM; this build runs gpt_oss");
    return;
  }
  // The original release names no architecture; its own spelling of the expert count stands for it.
  if (!r.has("num_experts") || !r.has("rope_scaling_factor"))
    r.fail(ErrorCode::unsupported, "model_type",
           "is missing, and so are the original gpt-oss keys num_experts and rope_scaling_factor; this build runs gpt_oss");
}

void check_options(ConfigReader& r) {
  if (const auto act = r.text("hidden_act", "silu"); act != "silu")
    r.fail(ErrorCode::unsupported, "hidden_act", fmt::format("is '{}'; gpt-oss models have 'silu' (its clamped SwiGLU)", printable(act)));
  if (!r.flag("attention_bias", true)) r.fail(ErrorCode::unsupported, "attention_bias", "is false; attention without biases is not supported");
  if (auto quantization = r.object("quantization_config")) {
    if (const auto method = quantization->text("quant_method", ""); method != "mxfp4")
      quantization->fail(ErrorCode::unsupported, "quant_method",
                         fmt::format("is '{}'; mxfp4, or no quantization_config, is supported", printable(method)));
  }
}

void read_sizes(ConfigReader& r, GptOssConfig& c) {
  c.hidden = r.whole("hidden_size", 1, width_max);
  c.intermediate = r.whole("intermediate_size", 1, width_max);
  c.query_heads = r.whole("num_attention_heads", 1, heads_max);
  c.kv_heads = r.whole("num_key_value_heads", 1, heads_max);
  c.head_dim = r.whole("head_dim", 2, head_dim_max);
  c.experts = r.whole_either("num_local_experts", "num_experts", 1, experts_max);
  c.experts_per_token = r.whole_either("num_experts_per_tok", "experts_per_token", 1, experts_max);
  c.vocabulary = r.whole("vocab_size", 1, vocabulary_max);
  c.norm_epsilon = static_cast<float>(r.real("rms_norm_eps", 1e-12, 0.1, 1e-5));
  c.swiglu_limit = static_cast<float>(r.real("swiglu_limit", 1e-3, 1e6, 7.0));
  c.tied_head = r.flag("tie_word_embeddings", false);
  if (c.query_heads % c.kv_heads != 0)
    r.fail(ErrorCode::corrupt, "num_key_value_heads",
           fmt::format("is {} and does not divide num_attention_heads, which is {}", c.kv_heads, c.query_heads));
  if (c.head_dim % 2 != 0) r.fail(ErrorCode::corrupt, "head_dim", fmt::format("is {}; rotary positions need an even one", c.head_dim));
  if (c.experts_per_token > c.experts)
    r.fail(ErrorCode::corrupt, r.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token",
           fmt::format("is {}, more than the {} experts there are", c.experts_per_token, c.experts));
}

void read_windows(ConfigReader& r, GptOssConfig& c) {
  const std::uint32_t layers = r.whole("num_hidden_layers", 1, layers_max);
  const std::uint32_t window = r.whole("sliding_window", 0, context_max, 0);
  std::vector<bool> windowed;
  if (const auto types = r.list("layer_types")) {
    if (types->size() != layers)
      return r.fail(ErrorCode::corrupt, "layer_types", fmt::format("has {} entries, num_hidden_layers is {}", types->size(), layers));
    for (const dom::element type : *types) {
      std::string_view text;
      if (type.get(text) != simdjson::SUCCESS || (text != "sliding_attention" && text != "full_attention"))
        return r.fail(ErrorCode::unsupported, "layer_types",
                      fmt::format("has '{}' for layer {}; sliding_attention and full_attention are supported", printable(text), windowed.size()));
      windowed.push_back(text == "sliding_attention");
    }
  } else {
    for (std::uint32_t layer = 0; layer < layers; ++layer) windowed.push_back(layer % 2 == 0);
  }
  for (const bool is_windowed : windowed) {
    if (is_windowed && window == 0)
      return r.fail(ErrorCode::corrupt, "sliding_window", fmt::format("is missing or 0, but layer {} has sliding attention", c.windows.size()));
    c.windows.push_back(is_windowed ? window : 0);
  }
}

// rope_scaling of older configs, rope_parameters of newer ones.
void read_rope_object(ConfigReader& rope, ConfigReader& root, RotaryConfig& c) {
  const auto type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") return;
  if (type != "yarn") return rope.fail(ErrorCode::unsupported, "rope_type", fmt::format("is '{}'; yarn and default are supported", printable(type)));
  for (const std::string_view key : {"mscale", "mscale_all_dim", "llama_4_scaling_beta"})
    if (rope.has(key)) rope.fail(ErrorCode::unsupported, key, "is set; gpt-oss models do not have it");
  c.factor = rope.real("factor", 1.0, 1e6);
  c.beta_fast = rope.real("beta_fast", 1e-3, 1e6, 32.0);
  c.beta_slow = rope.real("beta_slow", 1e-3, 1e6, 1.0);
  c.truncate = rope.flag("truncate", true);  // transformers rounds unless told not to
  if (rope.has("attention_factor")) c.attention_factor = rope.real("attention_factor", 1e-3, 1e3);
  if (rope.has("original_max_position_embeddings") || !root.has("initial_context_length"))
    c.original_context = rope.whole("original_max_position_embeddings", 1, context_max);
  else
    c.original_context = root.whole("initial_context_length", 1, context_max);
}

void read_rope(ConfigReader& r, GptOssConfig& c) {
  constexpr double theta_max = 1e12;
  auto parameters = r.object("rope_parameters");
  auto scaling = r.object("rope_scaling");
  RotaryConfig& rope = c.rotary;
  if (parameters && parameters->has("rope_theta")) {
    rope.theta = parameters->real("rope_theta", 1.5, theta_max);
    if (r.has("rope_theta") && r.real("rope_theta", 1.5, theta_max) != rope.theta)
      r.fail(ErrorCode::corrupt, "rope_theta", fmt::format("differs from rope_parameters.rope_theta, which is {}", rope.theta));
  } else {
    rope.theta = r.real("rope_theta", 1.5, theta_max);
  }
  if (parameters) {
    read_rope_object(*parameters, r, rope);
  } else if (scaling) {
    read_rope_object(*scaling, r, rope);
  } else if (r.has("rope_scaling_factor")) {
    rope.factor = r.real("rope_scaling_factor", 1.0, 1e6);
    rope.beta_fast = r.real("rope_ntk_beta", 1e-3, 1e6);
    rope.beta_slow = r.real("rope_ntk_alpha", 1e-3, 1e6);
    rope.original_context = r.whole("initial_context_length", 1, context_max);
  } else if (!r.names("rope_scaling") && !r.names("rope_parameters")) {
    r.fail(ErrorCode::corrupt, "rope_scaling",
           "is missing, and so are rope_parameters and rope_scaling_factor; write null for positions without scaling");
  }
  for (auto* object : {&parameters, &scaling}) {
    if (*object && (*object)->real("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0)
      (*object)->fail(ErrorCode::unsupported, "partial_rotary_factor", "is not 1; rotating a part of each head is not supported");
  }
  if (rope.beta_fast <= rope.beta_slow)
    r.fail(ErrorCode::corrupt, "rope_scaling",
           fmt::format("has beta_fast {} and beta_slow {}; fast must be the larger", rope.beta_fast, rope.beta_slow));
}

void read_context(ConfigReader& r, GptOssConfig& c) {
  if (r.has("max_position_embeddings")) {
    c.context_tokens_max = r.whole("max_position_embeddings", 1, context_max);
    return;
  }
  // The original keys give the length before stretching and by how much it is stretched.
  const double context = r.whole("initial_context_length", 1, context_max) * c.rotary.factor;
  if (context > context_max)
    return r.fail(ErrorCode::corrupt, "initial_context_length",
                  fmt::format("times rope_scaling_factor is {}; at most {} is supported", context, context_max));
  c.context_tokens_max = static_cast<std::uint32_t>(context);
}

std::vector<TokenId> read_stop_tokens(ConfigReader& r, std::uint32_t vocabulary) {
  if (!r.has(eos_key)) return {};
  const auto add = [&](std::vector<TokenId>& tokens, const dom::element& value) {
    std::uint64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id >= vocabulary)
      return r.fail(ErrorCode::corrupt, eos_key,
                    fmt::format("holds {}; token ids are whole numbers below {}", printable(simdjson::minify(value)), vocabulary));
    if (std::find(tokens.begin(), tokens.end(), id) == tokens.end()) tokens.push_back(static_cast<TokenId>(id));
  };
  std::vector<TokenId> tokens;
  if (r.is_list(eos_key)) {
    const dom::array ids = *r.list(eos_key);
    if (ids.size() > stop_tokens_max)
      r.fail(ErrorCode::corrupt, eos_key, fmt::format("has {} ids; at most {} are supported", ids.size(), stop_tokens_max));
    else
      for (const dom::element id : ids) add(tokens, id);
    return tokens;
  }
  tokens.push_back(r.whole(eos_key, 0, vocabulary - 1));
  return tokens;
}

// Runs `read` over the root object of a JSON text and gives what it returns, or the first error.
template <class Read>
auto read_json(std::string_view file, std::string_view json, Read read) -> Result<decltype(read(std::declval<ConfigReader&>()))> {
  dom::parser parser;
  dom::object root;
  if (const auto failure = parser.parse(json.data(), json.size()).get(root); failure != simdjson::SUCCESS)
    return Error{ErrorCode::corrupt, fmt::format("{}: is not a JSON object: {}", file, simdjson::error_message(failure)), ""};
  std::optional<Error> error;
  ConfigReader reader(file, "", root, error);
  auto value = read(reader);
  if (error) return *error;
  return value;
}

}  // namespace

Result<GptOssConfig> parse_gpt_oss_config(std::string_view file, std::string_view json) {
  return read_json(file, json, [](ConfigReader& r) {
    GptOssConfig c;
    check_architecture(r);
    check_options(r);
    read_sizes(r, c);
    read_windows(r, c);
    read_rope(r, c);
    read_context(r, c);
    c.stop_tokens = read_stop_tokens(r, c.vocabulary);
    return c;
  });
}

Result<std::vector<TokenId>> parse_stop_tokens(std::string_view file, std::string_view json, std::uint32_t vocabulary) {
  return read_json(file, json, [&](ConfigReader& r) { return read_stop_tokens(r, vocabulary); });
}

}  // namespace althing::gpu
