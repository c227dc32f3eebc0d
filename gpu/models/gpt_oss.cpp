// Binds the names of both layouts to the parts of the spec. A binder marks what it hands out, so that in the end what is missing, misshapen or
// left over can be listed together: a checkpoint that loads is used to the last tensor.
#include "gpu/models/gpt_oss.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "gpu/models/gpt_oss_config.hpp"
#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/mxfp4.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {

namespace {

using Shape = std::vector<std::uint64_t>;

class Binder {
 public:
  explicit Binder(const Checkpoint& checkpoint) : checkpoint_(checkpoint), used_(checkpoint.tensors().size(), false) {}

  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }

  // The tensor, marked as used; an empty view and a problem noted when it is absent or not of this shape and one of these types.
  TensorView take(const std::string& name, const Shape& shape, std::initializer_list<DType> types) {
    const TensorView* tensor = checkpoint_.find(name);
    if (tensor == nullptr) {
      note(fmt::format("tensor '{}' {} is missing", name, shape_text(shape)), name);
      return {};
    }
    used_[static_cast<std::size_t>(tensor - checkpoint_.tensors().data())] = true;
    if (tensor->shape != shape) {
      note(fmt::format("{}: has shape {}, the config asks for {}", checkpoint_.where(*tensor), shape_text(tensor->shape), shape_text(shape)), name);
      return {};
    }
    if (std::find(types.begin(), types.end(), tensor->dtype) == types.end()) {
      note(fmt::format("{}: has dtype {}, supported here: {}", checkpoint_.where(*tensor), name_of(tensor->dtype), list_of(types)), name);
      return {};
    }
    return *tensor;
  }
  TensorView take_real(const std::string& name, const Shape& shape) { return take(name, shape, {DType::bf16, DType::f32}); }

  // All problems, at most ten of them spelled out.
  Status finish() {
    for (std::size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        note(fmt::format("{}: is not part of the model", checkpoint_.where(checkpoint_.tensors()[i])), printable(checkpoint_.tensors()[i].name));
    if (problem_count_ == 0) return Ok{};
    std::string more = problem_count_ > problems_.size() ? fmt::format("; and {} more", problem_count_ - problems_.size()) : "";
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: tensors and config do not fit: {}{}", printable_path(checkpoint_.directory()), fmt::join(problems_, "; "), more),
                 first_};
  }

 private:
  static std::string list_of(std::initializer_list<DType> types) {
    std::string text;
    for (const DType type : types) text += (text.empty() ? "" : ", ") + std::string(name_of(type));
    return text;
  }
  void note(std::string problem, const std::string& tensor) {
    constexpr std::size_t shown_max = 10;
    if (++problem_count_ == 1) first_ = tensor;
    if (problems_.size() < shown_max) problems_.push_back(std::move(problem));
  }

  const Checkpoint& checkpoint_;
  std::vector<bool> used_;
  std::vector<std::string> problems_;
  std::size_t problem_count_ = 0;
  std::string first_;
};

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
  Loader(Binder& binder, const Names& names, const GptOssConfig& config) : binder_(binder), names_(names), c_(config) {}

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
  Linear linear(const std::string& name, std::uint64_t out, std::uint64_t in) {
    return {binder_.take_real(prefix_ + name + ".weight", {out, in}), binder_.take_real(prefix_ + name + ".bias", {out})};
  }

  Attention attention() {
    Attention a;
    const std::uint64_t q_rows = std::uint64_t{c_.query_heads} * c_.head_dim, kv_rows = std::uint64_t{c_.kv_heads} * c_.head_dim;
    a.norm = binder_.take_real(prefix_ + names_.attention_norm, {c_.hidden});
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
    a.sinks = binder_.take_real(prefix_ + names_.sinks, {c_.query_heads});
    return a;
  }

  MoE moe() {
    MoE m;
    m.norm = binder_.take_real(prefix_ + names_.moe_norm, {c_.hidden});
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
    e.bias = binder_.take_real(prefix_ + name + names_.bias, {c_.experts, out});
    const std::string plain = prefix_ + name + (names_.plain_transposed ? "" : "_weight");
    if (binder_.has(plain)) {
      e.transposed = names_.plain_transposed;
      e.plain = binder_.take_real(plain, e.transposed ? Shape{c_.experts, in, out} : Shape{c_.experts, out, in});
    } else {
      // A width that is no multiple of the group has no MXFP4 shape; rounding down makes the mismatch show in the message.
      const std::uint64_t groups = in / mxfp4_group;
      e.blocks = binder_.take(prefix_ + name + names_.blocks, {c_.experts, out, groups, mxfp4_group / 2}, {DType::u8});
      e.scales = binder_.take(prefix_ + name + names_.scales, {c_.experts, out, groups}, {DType::u8});
    }
    return e;
  }

  Binder& binder_;
  const Names& names_;
  const GptOssConfig& c_;
  std::string prefix_;
};

Result<DecoderSpec> build_spec(const Checkpoint& checkpoint, const GptOssConfig& c) {
  Binder binder(checkpoint);
  const bool original = binder.has(original_names().embedding);
  const Names& names = original ? original_names() : hugging_face_names();
  if (!binder.has(names.embedding))
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: holds neither tensor '{}' nor '{}'; these are not the weights of a gpt-oss model",
                             printable_path(checkpoint.directory()), names.embedding, original_names().embedding),
                 names.embedding};
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
  spec.embedding = binder.take_real(names.embedding, {c.vocabulary, c.hidden});
  Loader loader(binder, names, c);
  for (std::size_t i = 0; i < c.windows.size(); ++i) spec.layers.push_back(loader.layer(i));
  spec.norm = binder.take_real(names.norm, {c.hidden});
  spec.head = c.tied_head ? spec.embedding : binder.take_real(names.head, {c.vocabulary, c.hidden});
  if (c.tied_head && binder.has(names.head)) {
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: the config says tie_word_embeddings, which leaves no place for it", checkpoint.where(*checkpoint.find(names.head))),
                 names.head};
  }
  if (auto status = binder.finish(); !status) return status.error();
  // MXFP4 shapes were made with in/32 rounded down; with every tensor in place this is the last thing that can be wrong.
  for (const DecoderLayer& layer : spec.layers)
    for (const ExpertLinear* e : {&layer.moe.gate_up, &layer.moe.down})
      if (e->is_mxfp4() && e->in % mxfp4_group != 0)
        return Error{ErrorCode::unsupported,
                     fmt::format("{}: MXFP4 needs an input width that is a multiple of {}, the config has {}", checkpoint.where(e->blocks),
                                 mxfp4_group, e->in),
                     e->blocks.name};
  return spec;
}

// generation_config.json wins over config.json; the original release has neither place for them, but only one tokenizer.
Result<std::vector<TokenId>> stop_tokens(const std::filesystem::path& directory, const GptOssConfig& c) {
  constexpr std::uint64_t bytes_max = 1u << 20;
  constexpr std::uint32_t o200k_harmony_vocabulary = 201088;
  const std::filesystem::path path = directory / "generation_config.json";
  auto text = read_small_file(path, bytes_max);
  if (!text && text.error().code != ErrorCode::not_found) return text.error();
  if (text) {
    auto tokens = parse_stop_tokens(printable_path(path), *text, c.vocabulary);
    if (!tokens || !tokens->empty()) return tokens;
  }
  if (c.stop_tokens.empty() && c.vocabulary == o200k_harmony_vocabulary) return std::vector<TokenId>{200002, 199999, 200012};
  return c.stop_tokens;
}

}  // namespace

Result<std::shared_ptr<const Model>> load_gpt_oss(const std::filesystem::path& directory) {
  auto checkpoint = Checkpoint::open(directory);
  if (!checkpoint) return checkpoint.error();
  auto config = parse_gpt_oss_config(printable_path(directory / "config.json"), (*checkpoint)->config_json());
  if (!config) return config.error();
  auto spec = build_spec(**checkpoint, *config);
  if (!spec) return spec.error();
  auto stops = stop_tokens(directory, *config);
  if (!stops) return stops.error();
  return std::make_shared<const Model>(Model{*checkpoint, std::move(*spec), std::move(*stops)});
}

}  // namespace althing::gpu
