// Binds the names of both layouts to the parts of the spec.
#include "gpu/models/gpt_oss_layout.hpp"

#include <utility>

#include "gpu/weights/mxfp4.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {
namespace {

constexpr std::initializer_list<DType> real_types = {DType::bf16, DType::f32};

// What the two layouts call the same things.
struct Names {
  std::string layer;  // with {} for the layer's number
  std::string embedding, norm, head;
  std::string attention_norm, q, k, v, qkv, out, sinks;  // qkv: fused, then q, k and v are empty
  std::string moe_norm, router, gate_up, down;
  std::string blocks, scales, bias;  // suffixes of gate_up and down
  bool plain_transposed;             // (experts, in, out) when not MXFP4
};

const Names& hugging_face_names() {
  static const Names names{"model.layers.{}.",
                           "model.embed_tokens.weight",
                           "model.norm.weight",
                           "lm_head.weight",
                           "input_layernorm.weight",
                           "self_attn.q_proj",
                           "self_attn.k_proj",
                           "self_attn.v_proj",
                           "",
                           "self_attn.o_proj",
                           "self_attn.sinks",
                           "post_attention_layernorm.weight",
                           "mlp.router",
                           "mlp.experts.gate_up_proj",
                           "mlp.experts.down_proj",
                           "_blocks",
                           "_scales",
                           "_bias",
                           true};
  return names;
}

const Names& original_names() {
  static const Names names{"block.{}.",
                           "embedding.weight",
                           "norm.scale",
                           "unembedding.weight",
                           "attn.norm.scale",
                           "",
                           "",
                           "",
                           "attn.qkv",
                           "attn.out",
                           "attn.sinks",
                           "mlp.norm.scale",
                           "mlp.gate",
                           "mlp.mlp1",
                           "mlp.mlp2",
                           "_weight.blocks",
                           "_weight.scales",
                           "_bias",
                           false};
  return names;
}

const Names& names_of(GptOssLayout layout) { return layout == GptOssLayout::original ? original_names() : hugging_face_names(); }

// `count` rows of a matrix or vector from row `first` on.
TensorView rows(const TensorView& whole, std::uint64_t first, std::uint64_t count) {
  if (whole.empty()) return {};
  TensorView part = whole;
  part.shape[0] = count;
  const std::uint64_t row_bytes = whole.shape[0] == 0 ? 0 : byte_count(whole) / whole.shape[0];
  part.data += first * row_bytes;
  return part;
}

class Loader {
 public:
  Loader(TensorSource& source, const Names& names, const GptOssConfig& config) : source_(source), names_(names), c_(config) {}

  DecoderLayer layer(std::size_t index) {
    prefix_ = names_.layer;
    prefix_.replace(prefix_.find("{}"), 2, std::to_string(index));
    DecoderLayer layer;
    layer.attention = attention();
    layer.attention.window = c_.windows[index];
    layer.moe = moe();
    return layer;
  }

 private:
  TensorView real(const std::string& name, const std::vector<std::uint64_t>& shape) { return source_.take(name, shape, real_types); }

  Linear linear(const std::string& name, std::uint64_t out, std::uint64_t in) {
    return {real(prefix_ + name + ".weight", {out, in}), real(prefix_ + name + ".bias", {out})};
  }

  Attention attention() {
    Attention a;
    const std::uint64_t q_rows = std::uint64_t{c_.query_heads} * c_.head_dim, kv_rows = std::uint64_t{c_.kv_heads} * c_.head_dim;
    a.norm = real(prefix_ + names_.attention_norm, {c_.hidden});
    a.norm_epsilon = c_.norm_epsilon;
    if (names_.qkv.empty()) {
      a.q = linear(names_.q, q_rows, c_.hidden);
      a.k = linear(names_.k, kv_rows, c_.hidden);
      a.v = linear(names_.v, kv_rows, c_.hidden);
    } else {
      const Linear fused = linear(names_.qkv, q_rows + 2 * kv_rows, c_.hidden);
      a.q = {rows(fused.weight, 0, q_rows), rows(fused.bias, 0, q_rows)};
      a.k = {rows(fused.weight, q_rows, kv_rows), rows(fused.bias, q_rows, kv_rows)};
      a.v = {rows(fused.weight, q_rows + kv_rows, kv_rows), rows(fused.bias, q_rows + kv_rows, kv_rows)};
    }
    a.out = linear(names_.out, c_.hidden, q_rows);
    a.sinks = real(prefix_ + names_.sinks, {c_.query_heads});
    return a;
  }

  MoE moe() {
    MoE m;
    m.norm = real(prefix_ + names_.moe_norm, {c_.hidden});
    m.norm_epsilon = c_.norm_epsilon;
    m.router.linear = linear(names_.router, c_.experts, c_.hidden);
    m.router.experts_per_token = c_.experts_per_token;
    m.gate_up = experts(names_.gate_up, 2 * c_.intermediate, c_.hidden);
    m.down = experts(names_.down, c_.hidden, c_.intermediate);
    m.swiglu_limit = c_.swiglu_limit;
    return m;
  }

  ExpertLinear experts(const std::string& name, std::uint32_t out, std::uint32_t in) {
    ExpertLinear e;
    e.out = out;
    e.in = in;
    e.bias = real(prefix_ + name + names_.bias, {c_.experts, out});
    const std::string plain = prefix_ + name + (names_.plain_transposed ? "" : "_weight");
    if (source_.has(plain)) {
      e.transposed = names_.plain_transposed;
      e.plain = real(plain, e.transposed ? std::vector<std::uint64_t>{c_.experts, in, out} : std::vector<std::uint64_t>{c_.experts, out, in});
    } else {
      // A width that is no multiple of the group has no MXFP4 shape; rounding down makes the mismatch show in the message.
      const std::uint64_t groups = in / mxfp4_group;
      e.blocks = source_.take(prefix_ + name + names_.blocks, {c_.experts, out, groups, mxfp4_group / 2}, {DType::u8});
      e.scales = source_.take(prefix_ + name + names_.scales, {c_.experts, out, groups}, {DType::u8});
    }
    return e;
  }

  TensorSource& source_;
  const Names& names_;
  const GptOssConfig& c_;
  std::string prefix_;
};

}  // namespace

const std::string& embedding_name(GptOssLayout layout) { return names_of(layout).embedding; }
const std::string& head_name(GptOssLayout layout) { return names_of(layout).head; }

DecoderSpec assemble_gpt_oss(TensorSource& source, GptOssLayout layout, const GptOssConfig& c) {
  const Names& names = names_of(layout);
  DecoderSpec spec;
  spec.hidden = c.hidden;
  spec.query_heads = c.query_heads;
  spec.kv_heads = c.kv_heads;
  spec.head_dim = c.head_dim;
  spec.experts = c.experts;
  spec.intermediate = c.intermediate;
  spec.vocabulary = c.vocabulary;
  spec.context_tokens_max = c.context_tokens_max;
  spec.rotary = make_rotary(c.head_dim, c.rotary);
  spec.norm_epsilon = c.norm_epsilon;
  spec.embedding = source.take(names.embedding, {c.vocabulary, c.hidden}, real_types);
  Loader loader(source, names, c);
  for (std::size_t i = 0; i < c.windows.size(); ++i) spec.layers.push_back(loader.layer(i));
  spec.norm = source.take(names.norm, {c.hidden}, real_types);
  spec.head = c.tied_head ? spec.embedding : source.take(names.head, {c.vocabulary, c.hidden}, real_types);
  return spec;
}

}  // namespace althing::gpu
