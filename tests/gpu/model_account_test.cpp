// Parameters and bytes of models whose figures are published or can be added up by hand.
#include "gpu/model_account.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "gpu/models/gpt_oss.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {
namespace {

const std::filesystem::path models = std::filesystem::path(ALTHING_SOURCE_DIR) / "examples/models";

ModelAccount dummy(const char* size, const ReadFormat& format) { return account_of(dummy_model(size).value()->spec, format); }

// 20.9B and 3.6B, 116.8B and 5.1B in the model card: the embedding is looked up, so it is not active; the head is.
TEST(ModelAccountTest, published_parameters) {
  const ModelAccount small = dummy("20b", {}), large = dummy("120b", {});
  EXPECT_EQ(small.total().parameters, 20'914'757'184u);
  EXPECT_EQ(small.total().active_parameters, 3'608'307'264u);
  EXPECT_EQ(large.total().parameters, 116'829'156'672u);
  EXPECT_EQ(large.total().active_parameters, 5'132'849'472u);
}

TEST(ModelAccountTest, parts_of_20b) {
  const ModelAccount account = dummy("20b", {});
  const auto part = [&](ModelPart which) { return account.of(which); };
  EXPECT_EQ(part(ModelPart::embedding).parameters, 579'133'440u);
  EXPECT_EQ(part(ModelPart::embedding).active_parameters, 0u);
  EXPECT_EQ(part(ModelPart::embedding).read_bytes, 2880u * 2);  // one row
  EXPECT_EQ(part(ModelPart::attention).parameters, 637'203'456u);
  EXPECT_EQ(part(ModelPart::attention).active_parameters, 637'203'456u);
  EXPECT_EQ(part(ModelPart::router).parameters, 2'212'608u);
  EXPECT_EQ(part(ModelPart::experts).active_parameters, 2'389'616'640u);
  EXPECT_EQ(part(ModelPart::experts).parameters, 8 * std::uint64_t{2'389'616'640});
  EXPECT_EQ(part(ModelPart::norms).parameters, 141'120u);
  EXPECT_EQ(part(ModelPart::head).active_parameters, 579'133'440u);
  EXPECT_EQ(account.layers, 24u);
  EXPECT_EQ(account.experts_per_token, 4u);
}

// 17 bytes for 32 expert weights, 2 for everything else.
TEST(ModelAccountTest, bytes_of_published_models) {
  const ModelAccount small = dummy("20b", {.context_tokens = 1000}), large = dummy("120b", {.context_tokens = 1000});
  EXPECT_EQ(small.total().stored_bytes, 13'761'264'768u);
  EXPECT_EQ(large.total().stored_bytes, 65'248'815'744u);
  EXPECT_EQ(small.total().bf16_bytes, 2 * 20'914'757'184u);
  EXPECT_EQ(small.total().read_bytes, 3'708'089'088u);
  EXPECT_EQ(large.total().read_bytes, 5'002'907'904u);
  // Half of the layers see 127 positions before the token, the others all 1000.
  EXPECT_EQ(small.kv_read_bytes, 27'697'152u);
  EXPECT_EQ(small.read_bytes(), small.total().read_bytes + small.kv_read_bytes);
  EXPECT_EQ(small.kv_bytes_per_token, 24u * 2 * 8 * 64 * 2);
}

TEST(ModelAccountTest, fp8_halves_what_is_read_of_attention_and_head_and_nothing_else) {
  const ModelAccount exact = dummy("20b", {}), rounded = dummy("20b", {.dense = DenseFormat::fp8});
  EXPECT_EQ(rounded.total().stored_bytes, exact.total().stored_bytes);
  EXPECT_EQ(rounded.of(ModelPart::experts), exact.of(ModelPart::experts));
  EXPECT_EQ(rounded.of(ModelPart::router), exact.of(ModelPart::router));
  // A tile of 16 x 64 weights is 1056 bytes with its scale; 201088 x 2880 are 12568 x 45 of them.
  EXPECT_EQ(rounded.of(ModelPart::head).read_bytes, 12568u * 45 * 1056);
  EXPECT_EQ(exact.of(ModelPart::head).read_bytes, 12568u * 45 * 2048);
  EXPECT_EQ(exact.of(ModelPart::attention).read_bytes - rounded.of(ModelPart::attention).read_bytes, 24u * (2 * 256 + 2 * 32) * 45 * (2048 - 1056));
}

TEST(ModelAccountTest, keys_and_values_grow_with_the_context_up_to_each_window) {
  const auto read = [](std::uint32_t context, std::uint32_t element) {
    return dummy("20b", {.kv_element_bytes = element, .context_tokens = context}).kv_read_bytes;
  };
  EXPECT_EQ(read(0, 2), 0u);
  EXPECT_EQ(read(100, 2), 100u * 24 * 2 * 512 * 2);
  EXPECT_EQ(read(100, 4), 2 * read(100, 2));
  EXPECT_EQ(read(128, 2) - read(127, 2), 12u * 2 * 512 * 2);  // the windowed half is full
}

// Counted again from the file: every tensor but the scales, two parameters a byte of blocks.
TEST(ModelAccountTest, the_tiny_model_is_its_file) {
  const auto model = load_gpt_oss(models / "tiny").value();
  const ModelAccount account = account_of(model->spec, {.context_tokens = 100});
  std::uint64_t parameters = 0, bytes = 0;
  for (const TensorView& tensor : model->checkpoint->tensors()) {
    bytes += byte_count(tensor);
    if (tensor.name.ends_with("_scales")) continue;
    parameters += element_count(tensor) * (tensor.name.ends_with("_blocks") ? 2 : 1);
  }
  EXPECT_EQ(account.total().parameters, parameters);
  EXPECT_EQ(account.total().stored_bytes, bytes);
  EXPECT_EQ(bytes, 15'742'944u);
  EXPECT_EQ(account.total().active_parameters, 6'910'704u);
  EXPECT_EQ(account.read_bytes(), 7'974'432u + 307'200u);
}

TEST(ModelAccountTest, a_tied_head_is_one_matrix_that_is_active) {
  const auto model = load_gpt_oss(models / "tiny").value();
  DecoderSpec spec = model->spec;
  const ModelAccount apart = account_of(spec, {});
  spec.head = spec.embedding;
  const ModelAccount tied = account_of(spec, {});
  EXPECT_TRUE(tied.tied_head);
  EXPECT_FALSE(apart.tied_head);
  EXPECT_EQ(apart.total().parameters - tied.total().parameters, 2304u * 288);
  EXPECT_EQ(tied.total().active_parameters, apart.total().active_parameters);
  EXPECT_EQ(tied.total().read_bytes, apart.total().read_bytes);
}

}  // namespace
}  // namespace althing::gpu
