// See the header. `Lowering` keeps the first error and goes on with empty weights, so the layers read as the model does.
#include "gpu/ops/lower.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "gpu/ops/shape_check.hpp"

namespace althing::gpu {
namespace {

std::string text_of(const std::vector<std::uint64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

class Lowering {
 public:
  Lowering(const DecoderSpec& spec, const RankPlacement& placement) : spec_(spec), p_(placement) {}

  Result<Program> run() {
    if (auto status = check_placement(); !status) return status.error();
    program_.hidden = spec_.hidden;
    program_.layers = static_cast<std::uint32_t>(spec_.layers.size());
    program_.experts = spec_.experts;
    program_.intermediate = spec_.intermediate;
    program_.vocabulary = spec_.vocabulary;
    program_.head_dim = spec_.head_dim;
    program_.context_tokens_max = spec_.context_tokens_max;
    program_.query_heads = p_.query_heads.size();
    program_.kv_heads = p_.kv_heads.size();
    program_.dp_groups = p_.dp;
    program_.dp_group = p_.dp_group;
    program_.rotary = spec_.rotary;
    sizes_ = {spec_.hidden, spec_.head_dim, p_.query_heads.size(), p_.kv_heads.size(), spec_.experts, spec_.intermediate, spec_.vocabulary};
    if (spec_.rotary.inverse_frequencies.size() * 2 != spec_.head_dim)
      fail(ErrorCode::corrupt, "the rotary table has " + std::to_string(spec_.rotary.inverse_frequencies.size()) + " frequencies and must have " +
                                   std::to_string(spec_.head_dim / 2));

    emit(EmbedOp{matrix(spec_.embedding, spec_.vocabulary, spec_.hidden, {0, spec_.vocabulary}, {0, spec_.hidden})});
    emit(norm(spec_.layers[0].attention.norm, spec_.layers[0].attention.norm_epsilon));
    for (std::uint32_t layer = 0; layer < spec_.layers.size() && !error_; ++layer) {
      attention(layer);
      moe(layer);
    }
    emit(LogitsOp{matrix(spec_.head, spec_.vocabulary, spec_.hidden, p_.vocabulary, {0, spec_.hidden}), spec_.vocabulary});
    emit(SampleOp{spec_.vocabulary});
    if (error_) return *error_;
    return std::move(program_);
  }

 private:
  Status check_placement() const {
    const auto refuse = [](const std::string& why) -> Status {
      return Error{ErrorCode::invalid_argument, "the placement does not fit: " + why, "placement"};
    };
    const auto inside = [](Range r, std::uint32_t size) { return r.begin < r.end && r.end <= size; };
    if (spec_.layers.empty() || spec_.hidden == 0 || spec_.kv_heads == 0) return refuse("the model has no layers, width or KV heads");
    if (spec_.query_heads % spec_.kv_heads != 0) return refuse("query heads do not divide over KV heads");
    if (p_.rank.value >= p_.world) return refuse("rank " + std::to_string(p_.rank.value) + " of a world of " + std::to_string(p_.world));
    if (p_.dp == 0 || p_.world % p_.dp != 0 || p_.dp_group.value >= p_.dp)
      return refuse("group " + std::to_string(p_.dp_group.value) + " of " + std::to_string(p_.dp) + " in a world of " + std::to_string(p_.world));
    if (!inside(p_.query_heads, spec_.query_heads)) return refuse("query heads end at " + std::to_string(p_.query_heads.end));
    if (!inside(p_.vocabulary, spec_.vocabulary)) return refuse("the vocabulary ends at " + std::to_string(p_.vocabulary.end));
    if (!inside(p_.kv_heads, spec_.kv_heads)) return refuse("KV heads end at " + std::to_string(p_.kv_heads.end));
    const std::uint32_t group = spec_.query_heads / spec_.kv_heads;
    // Query head h reads KV head h / group; kernels rely on every KV head of the rank serving equally many query heads of the rank.
    if (p_.kv_heads.begin != p_.query_heads.begin / group || p_.kv_heads.end != (p_.query_heads.end - 1) / group + 1 ||
        p_.query_heads.size() % p_.kv_heads.size() != 0)
      return refuse("query heads and KV heads do not belong together");
    return Ok{};
  }

  void attention(std::uint32_t layer) {
    const Attention& a = spec_.layers[layer].attention;
    const std::uint32_t hd = spec_.head_dim;
    const Range q{p_.query_heads.begin * hd, p_.query_heads.end * hd};
    const Range kv{p_.kv_heads.begin * hd, p_.kv_heads.end * hd};
    const std::uint32_t q_all = spec_.query_heads * hd, kv_all = spec_.kv_heads * hd;
    const Range in{0, spec_.hidden};
    emit(QkvOp{layer, hd, matrix(a.q.weight, q_all, spec_.hidden, q, in), matrix(a.k.weight, kv_all, spec_.hidden, kv, in),
               matrix(a.v.weight, kv_all, spec_.hidden, kv, in), vector(a.q.bias, q_all, q), vector(a.k.bias, kv_all, kv),
               vector(a.v.bias, kv_all, kv)});
    emit(AttentionOp{layer, a.window, p_.query_heads.size(), p_.kv_heads.size(), hd, vector(a.sinks, spec_.query_heads, p_.query_heads)});
    emit(AttnOutOp{matrix(a.out.weight, spec_.hidden, q_all, {0, spec_.hidden}, q)});
    const MoE& m = spec_.layers[layer].moe;
    emit(ReduceAddNormOp{ReduceAddNormOp::Source::partial, vector(a.out.bias, spec_.hidden, {0, spec_.hidden}), norm(m.norm, m.norm_epsilon), layer});
  }

  void moe(std::uint32_t layer) {
    const MoE& m = spec_.layers[layer].moe;
    program_.experts_per_token = std::max(program_.experts_per_token, m.router.experts_per_token);
    emit(RouteOp{layer, matrix(m.router.linear.weight, spec_.experts, spec_.hidden, {0, spec_.experts}, {0, spec_.hidden}),
                 vector(m.router.linear.bias, spec_.experts, {0, spec_.experts}), m.router.experts_per_token});
    emit(GatherOp{layer, spec_.experts, p_.experts});
    if (error_) return;  // the held experts index the weights below
    ExpertsOp experts{layer, m.swiglu_limit, m.swiglu_alpha, {}, {}, {}, {}};
    for (const HeldExpert& held : p_.experts) {
      const ExpertId expert = held.expert;
      experts.gate_up.push_back(expert_matrix(m.gate_up, expert, 2 * spec_.intermediate, spec_.hidden));
      experts.down.push_back(expert_matrix(m.down, expert, spec_.hidden, spec_.intermediate));
      experts.gate_up_bias.push_back(expert_bias(m.gate_up, expert));
      experts.down_bias.push_back(expert_bias(m.down, expert));
    }
    emit(std::move(experts));
    emit(CombineOp{layer});
    const bool last = layer + 1 == spec_.layers.size();
    emit(ReduceAddNormOp{
        ReduceAddNormOp::Source::fixed_point,
        {},
        last ? norm(spec_.norm, spec_.norm_epsilon) : norm(spec_.layers[layer + 1].attention.norm, spec_.layers[layer + 1].attention.norm_epsilon),
        layer});
  }

  template <class T>
  void emit(T op) {
    if (error_) return;
    if (auto status = check(op, sizes_); !status) {
      error_ = status.error();
      return;
    }
    program_.ops.emplace_back(std::move(op));
  }

  void fail(ErrorCode code, std::string message, std::string field = {}) {
    if (!error_) error_ = Error{code, std::move(message), std::move(field)};
  }
  bool expect(const TensorView& t, const std::vector<std::uint64_t>& shape) {
    if (error_) return false;
    if (t.empty()) {
      fail(ErrorCode::corrupt, "a tensor of shape " + text_of(shape) + " is missing from the model");
    } else if (t.shape != shape) {
      fail(ErrorCode::corrupt, "tensor '" + t.name + "' has shape " + text_of(t.shape) + " and must have " + text_of(shape), t.name);
    }
    return !error_;
  }
  bool expect_plain(const TensorView& t) {
    if (t.dtype != DType::f32 && t.dtype != DType::bf16)
      fail(ErrorCode::unsupported, "tensor '" + t.name + "' has type " + std::string(name_of(t.dtype)) + "; this build computes with F32 and BF16",
           t.name);
    return !error_;
  }

  Matrix matrix(const TensorView& t, std::uint32_t out, std::uint32_t in, Range rows, Range columns) {
    if (!expect(t, {out, in}) || !expect_plain(t)) return {};
    Matrix m;
    m.format = t.dtype == DType::bf16 ? MatrixFormat::bf16 : MatrixFormat::f32;
    m.data = t.data + (std::uint64_t{rows.begin} * in + columns.begin) * size_of(t.dtype);
    m.out = rows.size();
    m.in = columns.size();
    m.row_stride = in;
    program_.weight_bytes += m.bytes();
    return m;
  }
  Vector vector(const TensorView& t, std::uint32_t size, Range part) {
    if (t.empty() || !expect(t, {size}) || !expect_plain(t)) return {};
    program_.weight_bytes += part.size() * size_of(t.dtype);
    return Vector{t.dtype, t.data, size}.part(part.begin, part.size());
  }
  NormOp norm(const TensorView& t, float epsilon) { return {vector(t, spec_.hidden, {0, spec_.hidden}), epsilon}; }

  Matrix expert_matrix(const ExpertLinear& l, ExpertId expert, std::uint32_t out, std::uint32_t in) {
    Matrix m;
    m.out = out;
    m.in = in;
    if (l.is_mxfp4()) {
      const std::uint32_t groups = in / mxfp4_group;
      if (in % mxfp4_group != 0)
        fail(ErrorCode::corrupt, "MXFP4 needs inputs in multiples of 32, '" + l.blocks.name + "' has " + std::to_string(in), l.blocks.name);
      if (!expect(l.blocks, {spec_.experts, out, groups, 16}) || !expect(l.scales, {spec_.experts, out, groups})) return {};
      if (l.blocks.dtype != DType::u8 || l.scales.dtype != DType::u8)
        fail(ErrorCode::corrupt, "tensor '" + l.blocks.name + "' and its scales must be U8", l.blocks.name);
      m.format = MatrixFormat::mxfp4;
      m.row_stride = groups;
      m.scales = l.scales.data + std::uint64_t{expert.value} * out * groups;
      m.data = l.blocks.data + std::uint64_t{expert.value} * out * groups * 16;
    } else {
      const std::vector<std::uint64_t> shape =
          l.transposed ? std::vector<std::uint64_t>{spec_.experts, in, out} : std::vector<std::uint64_t>{spec_.experts, out, in};
      if (!expect(l.plain, shape) || !expect_plain(l.plain)) return {};
      m.format = l.plain.dtype == DType::bf16 ? MatrixFormat::bf16 : MatrixFormat::f32;
      m.row_stride = l.transposed ? 1 : in;
      m.column_stride = l.transposed ? out : 1;
      m.data = l.plain.data + std::uint64_t{expert.value} * out * in * size_of(l.plain.dtype);
    }
    program_.weight_bytes += m.bytes();
    return m;
  }
  Vector expert_bias(const ExpertLinear& l, ExpertId expert) {
    if (l.bias.empty() || !expect(l.bias, {spec_.experts, l.out}) || !expect_plain(l.bias)) return {};
    program_.weight_bytes += l.out * size_of(l.bias.dtype);
    return Vector{l.bias.dtype, l.bias.data + std::uint64_t{expert.value} * l.out * size_of(l.bias.dtype), l.out};
  }

  const DecoderSpec& spec_;
  const RankPlacement& p_;
  Sizes sizes_;
  Program program_;
  std::optional<Error> error_;
};

}  // namespace

Result<Program> lower(const DecoderSpec& spec, const RankPlacement& placement) { return Lowering(spec, placement).run(); }

std::string_view name_of(const Op& op) {
  constexpr std::string_view names[] = {"embed", "norm",   "qkv",     "attention", "attn_out", "reduce_add_norm",
                                        "route", "gather", "experts", "combine",   "logits",   "sample"};
  static_assert(std::size(names) == std::variant_size_v<Op>);
  return names[op.index()];
}

FusionGroup fusion_group(const Op& op) {
  constexpr FusionGroup groups[] = {FusionGroup::embed,     FusionGroup::embed,  FusionGroup::attention, FusionGroup::attention,
                                    FusionGroup::attention, FusionGroup::reduce, FusionGroup::moe,       FusionGroup::moe,
                                    FusionGroup::moe,       FusionGroup::moe,    FusionGroup::head,      FusionGroup::head};
  static_assert(std::size(groups) == std::variant_size_v<Op>);
  return groups[op.index()];
}

}  // namespace althing::gpu
