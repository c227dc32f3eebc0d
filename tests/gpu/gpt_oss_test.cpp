// The model file: every layout of the same weights gives the same spec, and a tensor too many or too few is named.
#include "gpu/models/gpt_oss.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/weights/mxfp4.hpp"
#include "gpu/weights/safetensors.hpp"
#include "tests/support/checkpoint_writer.hpp"

namespace althing::gpu {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using tests::NamedTensor;
using tests::TemporaryFolder;

const fs::path reference_a = fs::path(ALTHING_SOURCE_DIR) / "tests/data/references/gpt_oss_a";

std::shared_ptr<const Model> loaded(const fs::path& directory) {
  auto model = load_gpt_oss(directory);
  EXPECT_TRUE(model) << model.error().message;
  return model ? *model : nullptr;
}

// Every number of a float view, in order.
std::vector<float> values(const TensorView& view) {
  std::vector<float> out(element_count(view));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (view.dtype == DType::f32) {
      std::memcpy(&out[i], view.data + 4 * i, 4);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, view.data + 2 * i, 2);
      out[i] = std::bit_cast<float>(std::uint32_t{half} << 16);
    }
  }
  return out;
}

// (experts, out, in), whatever the form.
std::vector<float> values(const ExpertLinear& e) {
  if (e.is_mxfp4()) {
    std::vector<float> out(2 * element_count(e.blocks));
    expand_row({e.blocks.data, byte_count(e.blocks)}, {e.scales.data, byte_count(e.scales)}, out);
    return out;
  }
  const std::vector<float> plain = values(e.plain);
  if (!e.transposed) return plain;
  std::vector<float> out(plain.size());
  const std::size_t experts = e.plain.shape[0], ins = e.in, outs = e.out;
  for (std::size_t x = 0; x < experts; ++x)
    for (std::size_t o = 0; o < outs; ++o)
      for (std::size_t i = 0; i < ins; ++i) out[(x * outs + o) * ins + i] = plain[(x * ins + i) * outs + o];
  return out;
}

void expect_same(const TensorView& a, const TensorView& b, const std::string& what) {
  ASSERT_FALSE(a.empty() || b.empty()) << what;
  EXPECT_EQ(a.shape, b.shape) << what;
  EXPECT_EQ(values(a), values(b)) << what;
}
void expect_same(const Linear& a, const Linear& b, const std::string& what) {
  expect_same(a.weight, b.weight, what + " weight");
  expect_same(a.bias, b.bias, what + " bias");
}
void expect_same(const ExpertLinear& a, const ExpertLinear& b, const std::string& what) {
  EXPECT_EQ(std::pair(a.out, a.in), std::pair(b.out, b.in)) << what;
  EXPECT_EQ(values(a), values(b)) << what;
  expect_same(a.bias, b.bias, what + " bias");
}

void expect_same_model(const DecoderSpec& a, const DecoderSpec& b) {
  EXPECT_EQ(a.context_tokens_max, b.context_tokens_max);
  EXPECT_EQ(a.rotary.inverse_frequencies, b.rotary.inverse_frequencies);
  EXPECT_EQ(a.rotary.attention_factor, b.rotary.attention_factor);
  EXPECT_EQ(a.norm_epsilon, b.norm_epsilon);
  expect_same(a.embedding, b.embedding, "embedding");
  expect_same(a.norm, b.norm, "norm");
  expect_same(a.head, b.head, "head");
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const std::string at = "layer " + std::to_string(i);
    const auto& [x, m] = a.layers[i];
    const auto& [y, n] = b.layers[i];
    EXPECT_EQ(x.window, y.window) << at;
    expect_same(x.norm, y.norm, at + " attention norm");
    expect_same(x.q, y.q, at + " q");
    expect_same(x.k, y.k, at + " k");
    expect_same(x.v, y.v, at + " v");
    expect_same(x.out, y.out, at + " out");
    expect_same(x.sinks, y.sinks, at + " sinks");
    expect_same(m.norm, n.norm, at + " moe norm");
    expect_same(m.router.linear, n.router.linear, at + " router");
    EXPECT_EQ(m.router.experts_per_token, n.router.experts_per_token) << at;
    EXPECT_EQ(m.swiglu_limit, n.swiglu_limit) << at;
    expect_same(m.gate_up, n.gate_up, at + " gate_up");
    expect_same(m.down, n.down, at + " down");
  }
}

std::vector<NamedTensor> tensors(const std::string& form) { return tests::tensors_of(**Checkpoint::open(reference_a / form)); }
std::string config(const std::string& form) { return tests::read_text(reference_a / form / "config.json"); }

// The config with the (scalar) value of one key replaced.
std::string with_value(std::string text, const std::string& key, const std::string& value) {
  const std::size_t at = text.find('"' + key + '"');
  EXPECT_NE(at, std::string::npos) << key;
  const std::size_t colon = text.find(':', at), end = text.find_first_of(",}", colon);
  return text.replace(colon + 1, end - colon - 1, value);
}

NamedTensor taken(std::vector<NamedTensor>& from, const std::string& name) {
  const auto at = std::find_if(from.begin(), from.end(), [&](const NamedTensor& t) { return t.name == name; });
  if (at == from.end()) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  NamedTensor tensor = std::move(*at);
  from.erase(at);
  return tensor;
}

// What the original release calls the tensors of the Hugging Face layout.
std::vector<NamedTensor> to_original(std::vector<NamedTensor> from, std::size_t layers) {
  std::vector<NamedTensor> out;
  const auto move = [&](const std::string& name, const std::string& to) {
    out.push_back(taken(from, name));
    out.back().name = to;
  };
  move("model.embed_tokens.weight", "embedding.weight");
  move("lm_head.weight", "unembedding.weight");
  move("model.norm.weight", "norm.scale");
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string hf = "model.layers." + std::to_string(i) + ".";
    const std::string block = "block." + std::to_string(i) + ".";
    move(hf + "input_layernorm.weight", block + "attn.norm.scale");
    move(hf + "post_attention_layernorm.weight", block + "mlp.norm.scale");
    for (const std::string part : {".weight", ".bias"}) {
      NamedTensor fused = taken(from, hf + "self_attn.q_proj" + part);
      for (const std::string matrix : {"k", "v"}) {
        const NamedTensor next = taken(from, hf + "self_attn." + matrix + "_proj" + part);
        fused.shape[0] += next.shape[0];
        fused.data += next.data;
      }
      fused.name = block + "attn.qkv" + part;
      out.push_back(std::move(fused));
      move(hf + "self_attn.o_proj" + part, block + "attn.out" + part);
      move(hf + "mlp.router" + part, block + "mlp.gate" + part);
    }
    move(hf + "self_attn.sinks", block + "attn.sinks");
    for (const auto& [theirs, ours] : {std::pair<std::string, std::string>{"gate_up_proj", "mlp1"}, {"down_proj", "mlp2"}}) {
      move(hf + "mlp.experts." + theirs + "_bias", block + "mlp." + ours + "_bias");
      move(hf + "mlp.experts." + theirs + "_blocks", block + "mlp." + ours + "_weight.blocks");
      move(hf + "mlp.experts." + theirs + "_scales", block + "mlp." + ours + "_weight.scales");
    }
  }
  EXPECT_TRUE(from.empty());
  return out;
}

constexpr const char* original_config =
    R"({"num_hidden_layers":3,"num_experts":6,"experts_per_token":4,"vocab_size":256,"hidden_size":192,"intermediate_size":96,"swiglu_limit":7.0,)"
    R"("head_dim":64,"num_attention_heads":4,"num_key_value_heads":2,"sliding_window":8,"initial_context_length":32,"rope_theta":150000,)"
    R"("rope_scaling_factor":4.0,"rope_ntk_alpha":1,"rope_ntk_beta":32})";

TEST(GptOss, sizes_windows_and_stop_tokens_are_those_of_the_config) {
  const auto model = loaded(reference_a / "mxfp4");
  const DecoderSpec& spec = model->spec;
  EXPECT_EQ(spec.hidden, 192u);
  EXPECT_EQ(spec.query_heads, 4u);
  EXPECT_EQ(spec.kv_heads, 2u);
  EXPECT_EQ(spec.head_dim, 64u);
  EXPECT_EQ(spec.experts, 6u);
  EXPECT_EQ(spec.intermediate, 96u);
  EXPECT_EQ(spec.vocabulary, 256u);
  EXPECT_EQ(spec.context_tokens_max, 128u);
  ASSERT_EQ(spec.layers.size(), 3u);
  EXPECT_EQ(spec.layers[0].attention.window, 8u);
  EXPECT_EQ(spec.layers[1].attention.window, 0u);
  EXPECT_TRUE(spec.layers[0].moe.gate_up.is_mxfp4());
  EXPECT_EQ(model->stop_tokens, (std::vector<TokenId>{255}));
}

TEST(GptOss, the_tiny_models_load_with_the_stop_tokens_of_their_generation_config) {
  for (const char* name : {"tiny", "tiny-draft"}) {
    const auto model = loaded(fs::path(ALTHING_SOURCE_DIR) / "examples/models" / name);
    EXPECT_EQ(model->stop_tokens, (std::vector<TokenId>{2287, 2284, 2297})) << name;
  }
}

TEST(GptOss, bf16_experts_hold_the_values_of_the_mxfp4_ones) {
  const auto bf16 = loaded(reference_a / "bf16");
  EXPECT_TRUE(bf16->spec.layers[0].moe.down.transposed);
  expect_same_model(bf16->spec, loaded(reference_a / "mxfp4")->spec);
}

TEST(GptOss, the_original_layout_is_the_same_model) {
  TemporaryFolder folder;
  folder.write("config.json", original_config);
  folder.write("model.safetensors", tests::safetensors_of(to_original(tensors("mxfp4"), 3)));
  expect_same_model(loaded(folder.path())->spec, loaded(reference_a / "mxfp4")->spec);
}

TEST(GptOss, sharded_original_layout_is_the_same_model) {
  TemporaryFolder folder;
  folder.write("config.json", original_config);
  tests::write_sharded(folder, to_original(tensors("mxfp4"), 3), 7);
  expect_same_model(loaded(folder.path())->spec, loaded(reference_a / "mxfp4")->spec);
}

TEST(GptOss, sharded_files_with_rope_parameters_are_the_same_model) {
  for (const std::string form : {"mxfp4", "bf16"}) {
    TemporaryFolder folder;
    std::string text = config(form);
    const std::size_t theta = text.find("\"rope_theta\"");
    ASSERT_NE(theta, std::string::npos);
    text.erase(theta, text.find(',', theta) + 1 - theta);
    const std::size_t rope = text.find("\"rope_scaling\"");
    ASSERT_NE(rope, std::string::npos);
    text.replace(rope, text.find('{', rope) + 1 - rope, "\"rope_parameters\": {\"rope_theta\": 150000.0,");
    folder.write("config.json", text);
    tests::write_sharded(folder, tensors(form), 11);
    expect_same_model(loaded(folder.path())->spec, loaded(reference_a / form)->spec);
  }
}

TEST(GptOss, f32_weights_are_accepted) {
  TemporaryFolder folder;
  folder.write("config.json", config("mxfp4"));
  std::vector<NamedTensor> all = tensors("mxfp4");
  for (NamedTensor& t : all) {
    if (t.dtype != DType::bf16) continue;
    std::string wide;
    for (std::size_t i = 0; i < t.data.size(); i += 2) wide.append(2, '\0').append(t.data, i, 2);
    t.data = wide;
    t.dtype = DType::f32;
  }
  folder.write("model.safetensors", tests::safetensors_of(all));
  expect_same_model(loaded(folder.path())->spec, loaded(reference_a / "mxfp4")->spec);
}

TEST(GptOss, a_tied_head_is_the_embedding) {
  TemporaryFolder folder;
  folder.write("config.json", with_value(config("mxfp4"), "tie_word_embeddings", "true"));
  std::vector<NamedTensor> all = tensors("mxfp4");
  folder.write("model.safetensors", tests::safetensors_of(all));
  const auto both = load_gpt_oss(folder.path());
  ASSERT_FALSE(both);
  EXPECT_THAT(both.error().message, HasSubstr("tie_word_embeddings"));
  taken(all, "lm_head.weight");
  folder.write("model.safetensors", tests::safetensors_of(all));
  const auto model = loaded(folder.path());
  EXPECT_EQ(model->spec.head.data, model->spec.embedding.data);
}

TEST(GptOss, generation_config_wins_and_is_checked) {
  TemporaryFolder folder;
  folder.write("config.json", config("mxfp4"));
  folder.write("model.safetensors", tests::safetensors_of(tensors("mxfp4")));
  folder.write("generation_config.json", R"({"eos_token_id":[7,9]})");
  EXPECT_EQ(loaded(folder.path())->stop_tokens, (std::vector<TokenId>{7, 9}));
  folder.write("generation_config.json", R"({"do_sample":true})");
  EXPECT_EQ(loaded(folder.path())->stop_tokens, (std::vector<TokenId>{255}));
  folder.write("generation_config.json", R"({"eos_token_id":256})");
  const auto refused = load_gpt_oss(folder.path());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("generation_config.json: eos_token_id"));
}

// Loads reference a with its tensors changed and gives the error.
template <class Change>
Error error_of(Change change, const std::string& config_text = config("mxfp4")) {
  TemporaryFolder folder;
  std::vector<NamedTensor> all = tensors("mxfp4");
  change(all);
  folder.write("config.json", config_text);
  folder.write("model.safetensors", tests::safetensors_of(all));
  const auto model = load_gpt_oss(folder.path());
  EXPECT_FALSE(model);
  return model ? Error{} : model.error();
}

TEST(GptOss, a_missing_an_unused_and_a_misshapen_tensor_are_listed_together) {
  const Error error = error_of([](std::vector<NamedTensor>& all) {
    taken(all, "model.layers.1.self_attn.sinks");
    all.push_back({"model.layers.9.extra", DType::u8, {1}, "x"});
    NamedTensor norm = taken(all, "model.norm.weight");
    norm.shape = {96, 2};
    all.push_back(norm);
  });
  EXPECT_EQ(error.code, ErrorCode::corrupt);
  EXPECT_EQ(error.field, "model.layers.1.self_attn.sinks");
  for (const char* text : {"'model.layers.1.self_attn.sinks' [4] is missing", "'model.layers.9.extra', byte", "not part of the model",
                           "tensor 'model.norm.weight', byte", "[96, 2]", "[192]"})
    EXPECT_THAT(error.message, HasSubstr(text));
}

TEST(GptOss, at_most_ten_problems_are_spelled_out) {
  const Error error = error_of([](std::vector<NamedTensor>& all) {
    for (int i = 10; i < 35; ++i) all.push_back({"extra" + std::to_string(i), DType::u8, {1}, "x"});
  });
  EXPECT_THAT(error.message, HasSubstr("extra19"));
  EXPECT_THAT(error.message, testing::Not(HasSubstr("extra20")));
  EXPECT_THAT(error.message, HasSubstr("and 15 more"));
}

TEST(GptOss, a_wrong_dtype_is_named) {
  const Error error = error_of([](std::vector<NamedTensor>& all) {
    for (NamedTensor& t : all)
      if (t.name == "model.layers.2.mlp.router.bias") t.dtype = DType::f16;
  });
  for (const char* text : {"'model.layers.2.mlp.router.bias', byte", "F16", "BF16, F32"}) EXPECT_THAT(error.message, HasSubstr(text));
}

TEST(GptOss, both_forms_of_one_expert_matrix_are_one_too_many) {
  const Error error = error_of([](std::vector<NamedTensor>& all) {
    all.push_back({"model.layers.0.mlp.experts.down_proj", DType::bf16, {6, 96, 192}, std::string(6 * 96 * 192 * 2, '\0')});
  });
  EXPECT_THAT(error.message, HasSubstr("'model.layers.0.mlp.experts.down_proj_blocks', byte"));
}

TEST(GptOss, another_family_of_weights_is_said_to_be_one) {
  const Error error = error_of([](std::vector<NamedTensor>& all) { all = {{"transformer.wte.weight", DType::u8, {1}, "x"}}; });
  EXPECT_THAT(error.message, HasSubstr("not the weights of a gpt-oss model"));
}

TEST(GptOss, a_config_that_asks_for_other_shapes_is_an_error_with_both) {
  const Error error = error_of([](std::vector<NamedTensor>&) {}, with_value(config("mxfp4"), "intermediate_size", "64"));
  for (const char* text : {"down_proj_blocks', byte", "[6, 192, 3, 16]", "[6, 192, 2, 16]", "gate_up_proj_bias', byte", "[6, 192]", "[6, 128]"})
    EXPECT_THAT(error.message, HasSubstr(text));
}

TEST(GptOss, mxfp4_refuses_a_width_that_is_no_multiple_of_its_group) {
  const std::string text = with_value(config("mxfp4"), "intermediate_size", "100");
  // Everything the config asks for, with in/32 rounded down for the down projection: 3 groups for 100.
  const Error error = error_of(
      [](std::vector<NamedTensor>& all) {
        for (NamedTensor& t : all) {
          if (t.name.find("gate_up_proj") == std::string::npos) continue;
          const std::size_t row = t.data.size() / 6 / 192;
          t.shape[1] = 200;
          t.data = std::string(6 * 200 * row, '\0');
        }
      },
      text);
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  for (const char* say : {"down_proj_blocks", "multiple of 32", "100"}) EXPECT_THAT(error.message, HasSubstr(say));
}

}  // namespace
}  // namespace althing::gpu
