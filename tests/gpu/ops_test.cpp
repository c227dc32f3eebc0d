// Lowering and the shape check of every op: the right part of each weight for each rank, and a refusal that names what does not fit.
#include "gpu/ops/lower.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpu/ops/fixed_point.hpp"
#include "gpu/ops/shape_check.hpp"
#include "scheduler/placement.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::SmallModel;

std::vector<RankPlacement> placements(const DecoderSpec& spec, std::uint32_t world) { return scheduler::place(world, tests::shape_of(spec)).value(); }

template <class T>
const T& op_of(const Program& program, std::size_t which = 0) {
  for (const Op& op : program.ops)
    if (std::holds_alternative<T>(op) && which-- == 0) return std::get<T>(op);
  throw std::runtime_error("no such op");
}

template <class T>
void expect_refused(const T& op, const Sizes& sizes, const char* why) {
  const auto status = check(op, sizes);
  ASSERT_FALSE(status.ok()) << why;
  EXPECT_EQ(status.error().code, ErrorCode::corrupt);
  EXPECT_NE(status.error().message.find(why), std::string::npos) << status.error().message;
}

struct Lowered {
  std::shared_ptr<Model> model = SmallModel::make();
  Program program = lower(model->spec, placements(model->spec, 1)[0]).value();
  Sizes sizes{160, 16, 8, 2, 6, 64, 101};
};

TEST(Lower, a_layer_is_the_documented_sequence_of_ops) {
  const Lowered l;
  std::string names;
  for (const Op& op : l.program.ops) names += std::string(name_of(op)) + " ";
  const std::string layer = "qkv attention attn_out reduce_add_norm route gather experts combine reduce_add_norm ";
  EXPECT_EQ(names, "embed norm " + layer + layer + layer + "logits sample ");
  EXPECT_EQ(fusion_group(l.program.ops[0]), FusionGroup::embed);
  EXPECT_EQ(fusion_group(l.program.ops[2]), FusionGroup::attention);
  EXPECT_EQ(fusion_group(l.program.ops[5]), FusionGroup::reduce);
  EXPECT_EQ(fusion_group(l.program.ops[8]), FusionGroup::moe);
  EXPECT_EQ(fusion_group(l.program.ops.back()), FusionGroup::head);
}

TEST(Lower, ranks_take_their_rows_columns_and_experts) {
  const auto model = SmallModel::make();
  const DecoderSpec& spec = model->spec;
  const auto all = placements(spec, 4);
  const Program p = lower(spec, all[3]).value();
  const auto& qkv = op_of<QkvOp>(p, 1);
  EXPECT_EQ(qkv.q.out, 32u);
  EXPECT_EQ(qkv.q.data, spec.layers[1].attention.q.weight.data + 96 * 160 * 2);
  EXPECT_EQ(qkv.k.out, 16u);  // four ranks on two KV heads: each rank holds one
  EXPECT_EQ(qkv.k.data, spec.layers[1].attention.k.weight.data + 16 * 160 * 2);
  EXPECT_EQ(qkv.q_bias.at(0), (Vector{DType::bf16, spec.layers[1].attention.q.bias.data, 128}.at(96)));
  const auto& out = op_of<AttnOutOp>(p, 1).out;
  EXPECT_EQ(out.in, 32u);
  EXPECT_EQ(out.row_stride, 128u);
  EXPECT_EQ(out.data, spec.layers[1].attention.out.weight.data + 96 * 2);
  EXPECT_EQ(op_of<GatherOp>(p).held, (std::vector<HeldExpert>{{ExpertId{5}}}));
  EXPECT_EQ(op_of<ExpertsOp>(p).gate_up[0].data, spec.layers[0].moe.gate_up.blocks.data + 5 * 128 * 5 * 16);
  EXPECT_EQ(op_of<LogitsOp>(p).head.out, 25u);
  EXPECT_EQ(op_of<LogitsOp>(p).head.data, spec.head.data + 76 * 160 * 2);
  EXPECT_EQ(op_of<AttentionOp>(p).sinks.size, 2u);
}

TEST(Lower, names_the_tensor_that_does_not_fit) {
  const auto model = SmallModel::make();
  const auto placement = placements(model->spec, 1)[0];
  const auto refused = [&](const DecoderSpec& spec, ErrorCode code, const char* part) {
    const auto result = lower(spec, placement);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code);
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  };
  DecoderSpec spec = model->spec;
  spec.layers[1].attention.k.weight.shape = {32, 161};
  refused(spec, ErrorCode::corrupt, "'layer1.k' has shape (32, 161) and must have (32, 160)");
  spec = model->spec;
  spec.head.dtype = DType::f16;
  refused(spec, ErrorCode::unsupported, "'head' has type F16");
  spec = model->spec;
  spec.layers[2].moe.down.scales.shape = {6, 160, 3};
  refused(spec, ErrorCode::corrupt, "'layer2.down_scales'");
  spec = model->spec;
  spec.layers[2].moe.norm = {};
  refused(spec, ErrorCode::corrupt, "norm weight is missing");
  spec = model->spec;
  spec.rotary.inverse_frequencies.pop_back();
  refused(spec, ErrorCode::corrupt, "7 frequencies and must have 8");
  spec = model->spec;
  spec.layers[0].moe.router.experts_per_token = 7;
  refused(spec, ErrorCode::corrupt, "7 of 6 experts");
}

TEST(Lower, refuses_a_placement_of_another_model) {
  const auto model = SmallModel::make();
  RankPlacement p = placements(model->spec, 1)[0];
  p.query_heads.end = 9;
  EXPECT_FALSE(lower(model->spec, p).ok());
  p = placements(model->spec, 2)[1];
  p.kv_heads = {0, 1};
  EXPECT_EQ(lower(model->spec, p).error().code, ErrorCode::invalid_argument);
  p = placements(model->spec, 1)[0];
  p.experts.push_back({ExpertId{6}});
  EXPECT_FALSE(lower(model->spec, p).ok());
  p = placements(model->spec, 1)[0];
  p.experts[2].copy = 1;
  EXPECT_FALSE(lower(model->spec, p).ok());
  p = placements(model->spec, 2)[0];
  p.dp_group = DpGroup{1};
  EXPECT_NE(lower(model->spec, p).error().message.find("group 1 of 1"), std::string::npos);
  p = placements(model->spec, 1)[0];
  p.vocabulary.end = 102;
  EXPECT_FALSE(lower(model->spec, p).ok());
}

TEST(ShapeCheck, embed) {
  Lowered l;
  auto op = op_of<EmbedOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.table.out = 100;
  expect_refused(op, l.sizes, "embedding is (100, 160) and must be (101, 160)");
}

TEST(ShapeCheck, norm) {
  Lowered l;
  auto op = op_of<NormOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.weight.size = 159;
  expect_refused(op, l.sizes, "norm weight has 159 elements and must have 160");
  op = op_of<NormOp>(l.program);
  op.epsilon = 0;
  expect_refused(op, l.sizes, "epsilon");
}

TEST(ShapeCheck, qkv) {
  Lowered l;
  auto op = op_of<QkvOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.v.out = 16;
  expect_refused(op, l.sizes, "v weight is (16, 160) and must be (32, 160)");
  op = op_of<QkvOp>(l.program);
  op.k_bias.size = 31;
  expect_refused(op, l.sizes, "k bias");
  op = op_of<QkvOp>(l.program);
  op.head_dim = 8;
  expect_refused(op, l.sizes, "head_dim is 8 and must be 16");
}

TEST(ShapeCheck, attention) {
  Lowered l;
  auto op = op_of<AttentionOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.sinks.size = 7;
  expect_refused(op, l.sizes, "sinks has 7");
  op = op_of<AttentionOp>(l.program);
  Sizes odd = l.sizes;
  op.kv_heads = odd.kv_heads = 3;
  expect_refused(op, odd, "multiple of the 3 KV heads");
  op = op_of<AttentionOp>(l.program);
  odd = l.sizes;
  op.head_dim = odd.head_dim = 15;
  expect_refused(op, odd, "even number");
}

TEST(ShapeCheck, attn_out) {
  Lowered l;
  auto op = op_of<AttnOutOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.out.in = 64;
  expect_refused(op, l.sizes, "output weight is (160, 64) and must be (160, 128)");
}

TEST(ShapeCheck, reduce_add_norm) {
  Lowered l;
  auto op = op_of<ReduceAddNormOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.bias.size = 1;
  expect_refused(op, l.sizes, "bias has 1 elements");
  op = op_of<ReduceAddNormOp>(l.program);
  op.norm.weight = {};
  expect_refused(op, l.sizes, "norm weight is missing");
}

TEST(ShapeCheck, route) {
  Lowered l;
  auto op = op_of<RouteOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.experts_per_token = 0;
  expect_refused(op, l.sizes, "0 of 6 experts");
  Sizes many = l.sizes;
  many.experts = 64;
  op.weight.out = op.bias.size = 64;
  op.experts_per_token = 32;
  expect_refused(op, many, "sums at most 31");
}

TEST(ShapeCheck, gather) {
  Lowered l;
  auto op = op_of<GatherOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.held = {{ExpertId{1}}, {ExpertId{0}}};
  expect_refused(op, l.sizes, "ascending");
  op.held = {{ExpertId{6}}};
  expect_refused(op, l.sizes, "6 does not exist");
}

TEST(ShapeCheck, experts) {
  Lowered l;
  auto op = op_of<ExpertsOp>(l.program);
  EXPECT_TRUE(check(op, l.sizes).ok());
  op.down[2].in = 32;
  expect_refused(op, l.sizes, "down weight is (160, 32) and must be (160, 64)");
  op = op_of<ExpertsOp>(l.program);
  op.down_bias.pop_back();
  expect_refused(op, l.sizes, "as many");
  op = op_of<ExpertsOp>(l.program);
  op.gate_up[0].scales = nullptr;
  expect_refused(op, l.sizes, "MXFP4");
  op = op_of<ExpertsOp>(l.program);
  op.swiglu_limit = 0;
  expect_refused(op, l.sizes, "swiglu_limit");
}

TEST(ShapeCheck, combine_logits_and_sample) {
  Lowered l;
  EXPECT_TRUE(check(CombineOp{}, l.sizes).ok());
  Sizes none = l.sizes;
  none.hidden = 0;
  expect_refused(CombineOp{}, none, "hidden");
  auto logits = op_of<LogitsOp>(l.program);
  EXPECT_TRUE(check(logits, l.sizes).ok());
  logits.head.out = 102;
  expect_refused(logits, l.sizes, "102 rows of a vocabulary of 101");
  EXPECT_TRUE(check(SampleOp{101}, l.sizes).ok());
  expect_refused(SampleOp{100}, l.sizes, "vocabulary is 100");
}

TEST(FixedPoint, keeps_what_fits_and_refuses_the_rest) {
  EXPECT_FALSE(fits_fixed_point(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(fits_fixed_point(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(fits_fixed_point(-0x1p22));
  EXPECT_TRUE(fits_fixed_point(std::nextafter(0x1p22, 0.0)));
  for (const double value : {0.0, 1.0, -1.0, 0x1p-36, -3.75, 12345.678, -4194303.999}) {
    EXPECT_NEAR(static_cast<double>(to_fixed_point(value)) * fixed_point_unit, value, 0x1p-37);
    EXPECT_FLOAT_EQ(from_fixed_point(to_fixed_point(value)), static_cast<float>(value));
  }
  // The most addends of the largest size do not wrap.
  const std::int64_t most = to_fixed_point(std::nextafter(0x1p22, 0.0));
  EXPECT_GT(std::numeric_limits<std::int64_t>::max() / fixed_point_addends_max, most);
}

}  // namespace
}  // namespace althing::gpu
