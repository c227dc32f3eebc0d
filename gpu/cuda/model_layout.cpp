// See model_layout.hpp.
#include "gpu/cuda/model_layout.hpp"

#include <algorithm>
#include <string>
#include <variant>

#include "gpu/cuda/attention.hpp"
#include "gpu/cuda/norm.hpp"
#include "gpu/cuda/stream_linear.hpp"

namespace althing::gpu::cuda {
namespace {

WeightFormat format_of(const Matrix& matrix, WeightFormat dense) { return matrix.format == MatrixFormat::mxfp4 ? WeightFormat::mxfp4 : dense; }

class Layout {
 public:
  Layout(const Program& program, const LayoutOptions& options, std::byte* base)
      : program_(program), dense_(options.dense), screen_head_(options.screen_head), base_(base) {}

  Result<ModelLayout> run() {
    DeviceModel& m = out_.model;
    m.hidden = program_.hidden;
    m.query_heads = program_.query_heads;
    m.kv_heads = program_.kv_heads;
    m.head_dim = program_.head_dim;
    m.experts = program_.experts;
    m.experts_per_token = program_.experts_per_token;
    m.intermediate = program_.intermediate;
    m.vocabulary = program_.vocabulary;
    m.attention_factor = program_.rotary.attention_factor;
    m.layers.resize(program_.layers);
    if (auto status = check_sizes(); !status) return status.error();
    m.embedding = reinterpret_cast<const __nv_bfloat16*>(take(std::uint64_t{program_.vocabulary} * program_.hidden * 2));
    out_.inverse_frequencies = program_.rotary.inverse_frequencies;
    m.inverse_frequencies = reinterpret_cast<const float*>(take(out_.inverse_frequencies.size() * sizeof(float)));
    for (const Op& op : program_.ops)
      if (auto status = std::visit([&](const auto& typed) { return place(typed); }, op); !status) return status.error();
    out_.bytes = offset_;
    return std::move(out_);
  }

 private:
  Status check_sizes() const {
    const Program& p = program_;
    if (!supports_attention({p.query_heads, p.kv_heads, p.head_dim}))
      return unsupported(std::to_string(p.query_heads) + " query heads over " + std::to_string(p.kv_heads) + " KV heads of " +
                         std::to_string(p.head_dim) + " dimensions; it takes heads of 64 and 1, 2, 4 or 8 query heads a KV head");
    if (!supports_router(p.hidden, p.experts, p.experts_per_token))
      return unsupported("a router of " + std::to_string(p.experts_per_token) + " of " + std::to_string(p.experts) + " experts over " +
                         std::to_string(p.hidden) + " inputs; it takes up to 16 of 128 experts and up to 4096 inputs in multiples of 4");
    return Ok{};
  }
  static Error unsupported(const std::string& what) {
    return {ErrorCode::unsupported, "the CUDA backend does not take this model: it has " + what, "device"};
  }

  std::byte* take(std::uint64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + offset_;
    offset_ += (bytes + 255) / 256 * 256;
    return at;
  }
  const float* vector(const Vector& source, bool is_norm = false) { return vectors({source}, is_norm); }
  // Several, one after the other; nullptr when they are empty.
  const float* vectors(const std::vector<Vector>& sources, bool is_norm = false) {
    std::uint64_t size = 0;
    for (const Vector& v : sources) size += v.size;
    if (size == 0) return nullptr;
    float* const at = reinterpret_cast<float*>(take(size * sizeof(float)));
    std::uint64_t from = 0;
    for (const Vector& v : sources) {
      if (!v.empty()) out_.vectors.push_back({v, at == nullptr ? nullptr : at + from, is_norm});
      from += v.size;
    }
    return at;
  }
  Norm norm(const NormOp& op) { return {vector(op.weight, true), op.epsilon}; }

  PackedMatrix packed(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t count) {
    PackedMatrix m{format, nullptr, out, in, count};
    m.data = take(m.bytes());
    return m;
  }
  void pack(const Matrix& source, const PackedMatrix& target, std::uint32_t index, std::uint32_t first_row, RowOrder order, std::uint32_t block) {
    PackedMatrix one = target;
    one.count = 1;
    std::byte* const data = target.data == nullptr ? nullptr : const_cast<std::byte*>(target.data) + index * target.matrix_bytes();
    out_.packs.push_back({source, one, data, first_row, order, block});
  }
  PackedMatrix dense_matrix(const Matrix& source, WeightFormat format) {
    PackedMatrix m = packed(format, source.out, source.in, 1);
    pack(source, m, 0, 0, RowOrder::natural, 0);
    return m;
  }
  DeviceLayer& layer(std::uint32_t index) { return out_.model.layers[index]; }

  Status place(const EmbedOp& op) {
    out_.embedding = op.table;
    return Ok{};
  }
  Status place(const NormOp& op) {
    out_.model.first_norm = norm(op);
    return Ok{};
  }
  Status place(const QkvOp& op) {
    DeviceLayer& l = layer(op.layer);
    l.qkv = packed(dense_, op.q.out + op.k.out + op.v.out, op.q.in, 1);
    if (!supports_stream(l.qkv)) return unsupported("linear layers of " + std::to_string(op.q.in) + " inputs, which do not fit on a multiprocessor");
    pack(op.q, l.qkv, 0, 0, RowOrder::halves, op.head_dim);
    pack(op.k, l.qkv, 0, op.q.out, RowOrder::halves, op.head_dim);
    pack(op.v, l.qkv, 0, op.q.out + op.k.out, RowOrder::halves, op.head_dim);
    if (op.q_bias.empty() != op.k_bias.empty() || op.q_bias.empty() != op.v_bias.empty()) return unsupported("biases for some of q, k and v only");
    l.qkv_bias = vectors({op.q_bias, op.k_bias, op.v_bias});
    return Ok{};
  }
  Status place(const AttentionOp& op) {
    layer(op.layer).window = op.window;
    layer(op.layer).sinks = vector(op.sinks);
    return Ok{};
  }
  Status place(const AttnOutOp& op) {
    out_matrix_ = op.out;
    return Ok{};
  }
  Status place(const ReduceAddNormOp& op) {
    DeviceLayer& l = layer(op.layer);
    if (op.source == ReduceAddNormOp::Source::fixed_point) {
      l.next_norm = norm(op.norm);
      return Ok{};
    }
    l.out = dense_matrix(out_matrix_, dense_);
    if (!supports_stream(l.out)) return unsupported("an attention output of " + std::to_string(out_matrix_.in) + " inputs");
    l.out_bias = vector(op.bias);
    l.moe_norm = norm(op.norm);
    return Ok{};
  }
  Status place(const RouteOp& op) {
    DeviceLayer& l = layer(op.layer);
    l.router = dense_matrix(op.weight, WeightFormat::bf16);
    l.router_bias = vector(op.bias);
    l.experts_per_token = op.experts_per_token;
    return Ok{};
  }
  Status place(const GatherOp& op) {
    if (op.held.size() != op.experts)
      return unsupported(std::to_string(op.held.size()) + " of " + std::to_string(op.experts) + " experts on this rank");
    return Ok{};
  }
  Status place(const ExpertsOp& op) {
    DeviceLayer& l = layer(op.layer);
    const std::uint32_t count = static_cast<std::uint32_t>(op.gate_up.size());
    l.gate_up = packed(format_of(op.gate_up[0], WeightFormat::bf16), op.gate_up[0].out, op.gate_up[0].in, count);
    l.down = packed(format_of(op.down[0], WeightFormat::bf16), op.down[0].out, op.down[0].in, count);
    for (std::uint32_t e = 0; e < count; ++e) {
      pack(op.gate_up[e], l.gate_up, e, 0, RowOrder::interleaved, 0);
      pack(op.down[e], l.down, e, 0, RowOrder::natural, 0);
    }
    l.gate_up_bias = vectors(op.gate_up_bias);
    l.down_bias = vectors(op.down_bias);
    l.swiglu_limit = op.swiglu_limit;
    l.swiglu_alpha = op.swiglu_alpha;
    return Ok{};
  }
  Status place(const CombineOp&) { return Ok{}; }
  Status place(const LogitsOp& op) {
    const PackedMatrix& head = out_.model.head = dense_matrix(op.head, dense_);
    if (!screen_head_ || !supports_screen(head)) return Ok{};
    HeadScreen& screen = out_.model.screen;
    screen.codes = take(screen_code_bytes(head));
    for (float** facts : {&screen.factors, &screen.errors, &screen.norms}) *facts = reinterpret_cast<float*>(take(screen_row_bytes(head)));
    return Ok{};
  }
  Status place(const SampleOp&) { return Ok{}; }

  const Program& program_;
  WeightFormat dense_;
  bool screen_head_;
  std::byte* base_;
  std::uint64_t offset_ = 0;
  ModelLayout out_;
  Matrix out_matrix_;
};

}  // namespace

Result<ModelLayout> lay_out(const Program& program, const LayoutOptions& options, std::byte* base) { return Layout(program, options, base).run(); }

}  // namespace althing::gpu::cuda
