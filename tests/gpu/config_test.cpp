// config.json in its three spellings: values that arrive, and values that are refused by name.
#include "gpu/models/gpt_oss_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/checkpoint_writer.hpp"

namespace althing::gpu {
namespace {

using testing::HasSubstr;

constexpr const char* rope_scaling = R"("rope_theta":150000,"rope_scaling":{"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,)"
                                     R"("original_max_position_embeddings":4096,"truncate":false},)";
constexpr const char* rope_parameters = R"("rope_parameters":{"rope_theta":150000,"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,)"
                                        R"("original_max_position_embeddings":4096,"truncate":false},)";

// Sizes of gpt-oss-20b, with four layers.
std::string hugging_face(const std::string& rope = rope_scaling) {
  std::string text = R"({"model_type":"gpt_oss","architectures":["GptOssForCausalLM"],"num_hidden_layers":4,"num_local_experts":32,)"
                     R"("num_experts_per_tok":4,"experts_per_token":4,"vocab_size":201088,"hidden_size":2880,"intermediate_size":2880,"head_dim":64,)"
                     R"("num_attention_heads":64,"num_key_value_heads":8,"sliding_window":128,)"
                     R"("layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"],)";
  text += rope;
  text += R"("max_position_embeddings":131072,"rms_norm_eps":1e-05,"attention_bias":true,"tie_word_embeddings":false,"hidden_act":"silu",)"
          R"("swiglu_limit":7.0,"eos_token_id":200002,"quantization_config":{"quant_method":"mxfp4"}})";
  return text;
}

std::string original() {
  return R"({"num_hidden_layers":4,"num_experts":32,"experts_per_token":4,"vocab_size":201088,"hidden_size":2880,"intermediate_size":2880,)"
         R"("swiglu_limit":7.0,"head_dim":64,"num_attention_heads":64,"num_key_value_heads":8,"sliding_window":128,"initial_context_length":4096,)"
         R"("rope_theta":150000,"rope_scaling_factor":32.0,"rope_ntk_alpha":1,"rope_ntk_beta":32})";
}

GptOssConfig parsed(const std::string& text) {
  const auto config = parse_gpt_oss_config("config.json", text);
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : GptOssConfig{};
}

TEST(GptOssConfig, three_spellings_give_the_same_numbers) {
  for (const std::string& text : {hugging_face(), hugging_face(rope_parameters), original()}) {
    const GptOssConfig c = parsed(text);
    EXPECT_EQ(c.hidden, 2880u);
    EXPECT_EQ(c.intermediate, 2880u);
    EXPECT_EQ(c.query_heads, 64u);
    EXPECT_EQ(c.kv_heads, 8u);
    EXPECT_EQ(c.head_dim, 64u);
    EXPECT_EQ(c.experts, 32u);
    EXPECT_EQ(c.experts_per_token, 4u);
    EXPECT_EQ(c.vocabulary, 201088u);
    EXPECT_EQ(c.context_tokens_max, 131072u);
    EXPECT_EQ(c.norm_epsilon, 1e-5F);
    EXPECT_EQ(c.swiglu_limit, 7.0F);
    EXPECT_FALSE(c.tied_head);
    EXPECT_EQ(c.rotary.theta, 150000.0);
    EXPECT_EQ(c.rotary.factor, 32.0);
    EXPECT_EQ(c.rotary.beta_fast, 32.0);
    EXPECT_EQ(c.rotary.beta_slow, 1.0);
    EXPECT_EQ(c.rotary.original_context, 4096u);
    EXPECT_FALSE(c.rotary.truncate);
  }
}

TEST(GptOssConfig, layer_types_are_honoured_and_even_layers_are_windowed_without_them) {
  EXPECT_EQ(parsed(hugging_face()).windows, (std::vector<std::uint32_t>{128, 0, 0, 128}));
  EXPECT_EQ(parsed(original()).windows, (std::vector<std::uint32_t>{128, 0, 128, 0}));
}

TEST(GptOssConfig, a_null_rope_scaling_means_plain_positions) {
  const GptOssConfig c = parsed(hugging_face(R"("rope_theta":10000.0,"rope_scaling":null,)"));
  EXPECT_EQ(c.rotary.factor, 1.0);
  const Rotary rotary = make_rotary(64, c.rotary);
  EXPECT_EQ(rotary.attention_factor, 1.0F);
  for (int j = 0; j < 32; ++j)
    EXPECT_FLOAT_EQ(rotary.inverse_frequencies[static_cast<std::size_t>(j)], static_cast<float>(std::pow(10000.0, -j / 32.0)));
}

TEST(GptOssConfig, missing_truncate_means_rounded_as_the_reference_has_it) {
  EXPECT_TRUE(parsed(tests::replaced(hugging_face(), R"(,"truncate":false)", "")).rotary.truncate);
}

TEST(GptOssConfig, original_context_falls_back_to_initial_context_length) {
  const std::string text = tests::replaced(tests::replaced(hugging_face(), R"("original_max_position_embeddings":4096,)", ""),
                                           R"("max_position_embeddings")", R"("initial_context_length":2048,"max_position_embeddings")");
  EXPECT_EQ(parsed(text).rotary.original_context, 2048u);
}

TEST(GptOssConfig, stop_tokens_are_a_number_or_a_list) {
  EXPECT_EQ(parsed(hugging_face()).stop_tokens, (std::vector<TokenId>{200002}));
  EXPECT_EQ(parsed(tests::replaced(hugging_face(), ":200002", ":[200002,199999,200002]")).stop_tokens, (std::vector<TokenId>{200002, 199999}));
  EXPECT_TRUE(parsed(original()).stop_tokens.empty());
  const auto listed = parse_stop_tokens("generation_config.json", R"({"eos_token_id":[3,1]})", 4);
  ASSERT_TRUE(listed);
  EXPECT_EQ(*listed, (std::vector<TokenId>{3, 1}));
  for (const char* bad : {R"({"eos_token_id":4})", R"({"eos_token_id":[4]})", R"({"eos_token_id":-1})", R"({"eos_token_id":["x"]})",
                          R"({"eos_token_id":1.5})", R"({"eos_token_id":{}})", "[]", ""}) {
    const auto refused = parse_stop_tokens("generation_config.json", bad, 4);
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("generation_config.json: "));
  }
}

struct Edit {
  const char* from;
  const char* to;
  ErrorCode code;
  const char* field;
  const char* says;
};

TEST(GptOssConfig, every_bad_value_is_refused_by_name) {
  const auto c = ErrorCode::corrupt;
  const auto u = ErrorCode::unsupported;
  const Edit edits[] = {
      {R"("model_type":"gpt_oss")", R"("model_type":"llama")", u, "model_type", "llama"},
      {R"("model_type":"gpt_oss","architectures":["GptOssForCausalLM"])", R"("architectures":["LlamaForCausalLM"])", u, "architectures", "gpt_oss"},
      {R"("model_type":"gpt_oss","architectures":["GptOssForCausalLM"])", R"("x":1)", u, "model_type", "missing"},
      {R"("hidden_act":"silu")", R"("hidden_act":"gelu")", u, "hidden_act", "gelu"},
      {R"("attention_bias":true)", R"("attention_bias":false)", u, "attention_bias", "false"},
      {R"("attention_bias":true)", R"("attention_bias":1)", c, "attention_bias", "true or false"},
      {R"("quant_method":"mxfp4")", R"("quant_method":"fp8")", u, "quantization_config.quant_method", "fp8"},
      {R"("hidden_size":2880,)", "", c, "hidden_size", "missing"},
      {R"("hidden_size":2880)", R"("hidden_size":null)", c, "hidden_size", "missing"},
      {R"("hidden_size":2880)", R"("hidden_size":0)", c, "hidden_size", "from 1 to 131072"},
      {R"("hidden_size":2880)", R"("hidden_size":-1)", c, "hidden_size", "is -1"},
      {R"("hidden_size":2880)", R"("hidden_size":131073)", c, "hidden_size", "131073"},
      {R"("hidden_size":2880)", R"("hidden_size":9223372036854775807)", c, "hidden_size", "9223372036854775807"},
      {R"("hidden_size":2880)", R"("hidden_size":2880.0)", c, "hidden_size", "whole"},
      {R"("hidden_size":2880)", R"("hidden_size":"2880")", c, "hidden_size", "whole"},
      {R"("hidden_size":2880)", R"("hidden_size":[2880])", c, "hidden_size", "whole"},
      {R"("hidden_size":2880)", R"("hidden_size":2880,"hidden_size":2880)", c, "hidden_size", "twice"},
      {R"("intermediate_size":2880)", R"("intermediate_size":0)", c, "intermediate_size", "from 1"},
      {R"("num_hidden_layers":4)", R"("num_hidden_layers":1000000000)", c, "num_hidden_layers", "1000000000"},
      {R"("num_hidden_layers":4)", R"("num_hidden_layers":5)", c, "layer_types", "has 4 entries, num_hidden_layers is 5"},
      {R"("full_attention")", R"("linear_attention")", u, "layer_types", "layer 1"},
      {R"("full_attention")", "7", u, "layer_types", "layer 1"},
      {R"("sliding_window":128)", R"("sliding_window":null)", c, "sliding_window", "layer 0"},
      {R"("num_attention_heads":64)", R"("num_attention_heads":60)", c, "num_key_value_heads", "is 8"},
      {R"("num_key_value_heads":8)", R"("num_key_value_heads":128)", c, "num_key_value_heads", "is 128"},
      {R"("head_dim":64)", R"("head_dim":63)", c, "head_dim", "63"},
      {R"("num_experts_per_tok":4,"experts_per_token":4)", R"("num_experts_per_tok":33)", c, "num_experts_per_tok", "more than the 32"},
      {R"("num_experts_per_tok":4)", R"("num_experts_per_tok":2)", c, "num_experts_per_tok", "two names"},
      {R"("num_local_experts":32)", R"("num_local_experts":32,"num_experts":16)", c, "num_local_experts", "two names"},
      {R"("vocab_size":201088)", R"("vocab_size":4294967296)", c, "vocab_size", "4294967296"},
      {R"("rms_norm_eps":1e-05)", R"("rms_norm_eps":0)", c, "rms_norm_eps", "is 0"},
      {R"("swiglu_limit":7.0)", R"("swiglu_limit":-7.0)", c, "swiglu_limit", "-7"},
      {R"("max_position_embeddings":131072)", R"("max_position_embeddings":0)", c, "max_position_embeddings", "is 0"},
      {R"("eos_token_id":200002)", R"("eos_token_id":201088)", c, "eos_token_id", "201088"},
      {R"("rope_theta":150000,)", "", c, "rope_theta", "missing"},
      {R"("rope_theta":150000)", R"("rope_theta":1)", c, "rope_theta", "is 1"},
      {R"("rope_theta":150000)", R"("rope_theta":1e400)", c, "", "JSON"},
      {R"("rope_type":"yarn")", R"("rope_type":"llama3")", u, "rope_scaling.rope_type", "llama3"},
      {R"("factor":32.0)", R"("factor":0.5)", c, "rope_scaling.factor", "0.5"},
      {R"("factor":32.0,)", "", c, "rope_scaling.factor", "missing"},
      {R"("beta_slow":1.0)", R"("beta_slow":32.0)", c, "rope_scaling", "fast must be the larger"},
      {R"("original_max_position_embeddings":4096,)", "", c, "rope_scaling.original_max_position_embeddings", "missing"},
      {R"("truncate":false)", R"("mscale":1.0)", u, "rope_scaling.mscale", "set"},
      {R"("truncate":false)", R"("partial_rotary_factor":0.5)", u, "rope_scaling.partial_rotary_factor", "not 1"},
      {R"("rope_scaling":{)", R"("other":{)", c, "rope_scaling", "missing"},
      {R"("rope_scaling":{)", R"("rope_scaling":3,"other":{)", c, "rope_scaling", "object"},
      {R"("rope_scaling":{)", R"("rope_parameters":{"rope_theta":10000},"rope_scaling":{)", c, "rope_theta", "differs"},
      {"}", "", c, "", "JSON"},
      {"{", "[", c, "", "JSON"},
  };
  for (const Edit& edit : edits) {
    const auto config = parse_gpt_oss_config("config.json", tests::replaced(hugging_face(), edit.from, edit.to));
    ASSERT_FALSE(config) << edit.from << " -> " << edit.to;
    EXPECT_EQ(config.error().code, edit.code) << config.error().message;
    EXPECT_EQ(config.error().field, edit.field) << config.error().message;
    EXPECT_THAT(config.error().message, HasSubstr("config.json: ")) << edit.to;
    EXPECT_THAT(config.error().message, HasSubstr(edit.says)) << edit.to;
  }
}

TEST(GptOssConfig, the_original_keys_have_ranges_too) {
  for (const auto& [from, to, field] : {std::tuple{R"("rope_scaling_factor":32.0)", R"("rope_scaling_factor":0)", "rope_scaling_factor"},
                                        {R"("rope_ntk_alpha":1)", R"("rope_ntk_alpha":0)", "rope_ntk_alpha"},
                                        {R"("initial_context_length":4096)", R"("initial_context_length":16000000)", "initial_context_length"},
                                        {R"("num_experts":32)", R"("num_experts":0)", "num_experts"},
                                        {R"("experts_per_token":4)", R"("experts_per_token":40)", "experts_per_token"}}) {
    const auto config = parse_gpt_oss_config("config.json", tests::replaced(original(), from, to));
    ASSERT_FALSE(config) << to;
    EXPECT_EQ(config.error().field, field) << config.error().message;
  }
}

// The published ramp of gpt-oss: bounds 8.0927791 and 17.3980245, unrounded.
TEST(Rotary, gpt_oss_frequencies_ramp_between_unrounded_bounds) {
  const Rotary rotary = make_rotary(64, parsed(hugging_face()).rotary);
  ASSERT_EQ(rotary.inverse_frequencies.size(), 32u);
  EXPECT_NEAR(rotary.attention_factor, 1.3465736, 1e-7);
  for (std::size_t j = 0; j < 32; ++j) {
    const double plain = std::pow(150000.0, -static_cast<double>(j) / 32.0);
    const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(j) - 8.0927791) / (17.3980245 - 8.0927791)));
    const double expected = plain * (ramp / 32.0 + 1.0 - ramp);
    EXPECT_NEAR(rotary.inverse_frequencies[j] / expected, 1.0, 3e-7) << j;
  }
}

TEST(Rotary, truncate_rounds_the_bounds_outwards) {
  RotaryConfig config = parsed(hugging_face()).rotary;
  config.truncate = true;
  const Rotary rotary = make_rotary(64, config);
  const double plain = std::pow(150000.0, -17.0 / 32.0), ramp = (17.0 - 8.0) / (18.0 - 8.0);
  EXPECT_NEAR(rotary.inverse_frequencies[17] / (plain * (ramp / 32.0 + 1.0 - ramp)), 1.0, 3e-7);
}

TEST(Rotary, bounds_are_clamped_to_0_and_head_dim_minus_1) {
  // With 32 original tokens corr(32) is negative; with theta 2 and long contexts corr(1) passes the head.
  RotaryConfig config{150000.0, 4.0, 32.0, 1.0, 32, false, std::nullopt};
  const double high = 64.0 * std::log(32.0 / (2.0 * std::numbers::pi)) / (2.0 * std::log(150000.0));
  Rotary rotary = make_rotary(64, config);
  EXPECT_EQ(rotary.inverse_frequencies[0], 1.0F);
  EXPECT_NEAR(rotary.inverse_frequencies[1] / (std::pow(150000.0, -1.0 / 32.0) * (1.0 - 0.75 / high)), 1.0, 3e-7);
  config = {2.0, 4.0, 32.0, 1.0, 65536, false, std::nullopt};
  const double low = std::log2(65536 / (64.0 * std::numbers::pi)) * 4.0;
  rotary = make_rotary(8, config);
  EXPECT_GT(low, 7.0);  // both bounds pass the clamp of the upper one: everything below is interpolated
  for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(rotary.inverse_frequencies[j], std::pow(2.0, -static_cast<double>(j) / 4.0) / 4.0, 1e-7);
}

TEST(Rotary, a_given_attention_factor_replaces_the_computed_one) {
  const auto text = tests::replaced(hugging_face(), R"("truncate":false)", R"("truncate":false,"attention_factor":1.5)");
  EXPECT_EQ(make_rotary(64, parsed(text).rotary).attention_factor, 1.5F);
}

}  // namespace
}  // namespace althing::gpu
