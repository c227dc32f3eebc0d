// Dummy models have the published sizes and no bytes; memory plans add up.
#include "gpu/cuda/memory_plan.hpp"

#include <gtest/gtest.h>

#include "gpu/executor.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "gpu/ops/lower.hpp"
#include "scheduler/placement.hpp"
#include "tests/gpu/engine.hpp"

namespace althing::gpu {
namespace {

std::vector<RankPlacement> placements(const Model& model, std::uint32_t world) {
  return scheduler::place(world, tests::shape_of(model.spec)).value();
}

// Parameters as the model cards count them.
std::uint64_t parameters(const DecoderSpec& spec) {
  std::uint64_t sum = 0;
  const auto add = [&](const TensorView& t, std::uint64_t values_per_element = 1) {
    std::uint64_t count = values_per_element;
    for (const std::uint64_t size : t.shape) count *= size;
    sum += count;
  };
  for (const TensorView* t : {&spec.embedding, &spec.norm, &spec.head}) add(*t);
  for (const DecoderLayer& layer : spec.layers) {
    const Attention& a = layer.attention;
    for (const Linear* l : {&a.q, &a.k, &a.v, &a.out, &layer.moe.router.linear}) add(l->weight), add(l->bias);
    for (const TensorView* t : {&a.norm, &a.sinks, &layer.moe.norm}) add(*t);
    for (const ExpertLinear* e : {&layer.moe.gate_up, &layer.moe.down}) add(e->blocks, 2), add(e->bias);
  }
  return sum;
}

TEST(DummyModel, has_the_published_sizes) {
  const auto small = dummy_model("20b"), large = dummy_model("120b");
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ((*small)->spec.layers.size(), 24u);
  EXPECT_EQ((*large)->spec.layers.size(), 36u);
  EXPECT_EQ(parameters((*small)->spec), 20'914'757'184u);
  EXPECT_EQ(parameters((*large)->spec), 116'829'156'672u);
  EXPECT_EQ((*small)->spec.layers[0].attention.window, 128u);
  EXPECT_EQ((*small)->spec.layers[1].attention.window, 0u);
  EXPECT_EQ((*small)->dummy_seed, 1u);
  EXPECT_NEAR((*small)->spec.rotary.attention_factor, 1.3466F, 1e-4F);
}

TEST(DummyModel, every_tensor_has_an_address_of_its_own_that_reads_as_zero) {
  const auto model = dummy_model("20b").value();
  const MoE& last = model->spec.layers.back().moe;
  EXPECT_EQ(model->spec.embedding.data[0], std::byte{0});
  EXPECT_EQ(last.down.scales.data[std::uint64_t{32} * 2880 * 90 - 1], std::byte{0});
  EXPECT_GE(model->spec.head.data - model->spec.norm.data, 2880 * 2);
  EXPECT_EQ(last.down.blocks.name, "model.layers.23.mlp.experts.down_proj_blocks");
}

TEST(DummyModel, lowers_like_a_checkpoint_and_the_cpu_refuses_it) {
  const auto model = dummy_model("20b").value();
  ExecutorConfig config;
  config.placement = placements(*model, 1)[0];
  const auto program = lower(model->spec, config.placement);
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_NEAR(static_cast<double>(program->weight_bytes), 13.76e9, 0.01e9);
  const auto refused = Executor::create(model, config);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_EQ(dummy_model("7b").error().code, ErrorCode::invalid_argument);
}

TEST(MemoryPlan, what_is_left_of_the_fraction_is_for_kv) {
  const auto model = dummy_model("20b").value();
  const Program program = lower(model->spec, placements(*model, 1)[0]).value();
  const Limits limits;
  const std::uint64_t device = std::uint64_t{140} << 30;
  const std::uint64_t kv = cuda::kv_bytes(program, limits, device, 0.9).value();
  EXPECT_EQ(kv + cuda::weight_bytes_max(program) + cuda::scratch_bytes_max(program, limits), std::uint64_t{126} << 30);
  EXPECT_LT(cuda::scratch_bytes_max(program, limits), std::uint64_t{2} << 30);
  EXPECT_LT(cuda::kv_bytes(program, limits, device, 0.5).value(), kv);
  Limits large = limits;
  large.step_tokens_max = 8192;
  EXPECT_LT(cuda::kv_bytes(program, large, device, 0.9).value(), kv);
}

TEST(MemoryPlan, a_model_that_leaves_no_room_is_refused_with_the_numbers) {
  const auto model = dummy_model("120b").value();
  const Program program = lower(model->spec, placements(*model, 1)[0]).value();
  const auto refused = cuda::kv_bytes(program, {}, std::uint64_t{40} << 30, 0.9);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::too_large);
  EXPECT_NE(refused.error().message.find("36864 MiB"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace althing::gpu
