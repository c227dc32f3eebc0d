// Takes the model's tensors from a checkpoint. A binder marks what it hands out, so that in the end what is missing, misshapen or left over can
// be listed together: a checkpoint that loads is used to the last tensor.
#include "gpu/models/gpt_oss.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "gpu/models/gpt_oss_config.hpp"
#include "gpu/models/gpt_oss_layout.hpp"
#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/mxfp4.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {

namespace {

using Shape = std::vector<std::uint64_t>;

class Binder final : public TensorSource {
 public:
  explicit Binder(const Checkpoint& checkpoint) : checkpoint_(checkpoint), used_(checkpoint.tensors().size(), false) {}

  bool has(std::string_view name) const override { return checkpoint_.find(name) != nullptr; }

  // The tensor, marked as used; an empty view and a problem noted when it is absent or not of this shape and one of these types.
  TensorView take(const std::string& name, const Shape& shape, std::initializer_list<DType> types) override {
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

Result<DecoderSpec> build_spec(const Checkpoint& checkpoint, const GptOssConfig& c) {
  Binder binder(checkpoint);
  const GptOssLayout layout = binder.has(embedding_name(GptOssLayout::original)) ? GptOssLayout::original : GptOssLayout::hugging_face;
  if (!binder.has(embedding_name(layout)))
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: holds neither tensor '{}' nor '{}'; these are not the weights of a gpt-oss model",
                             printable_path(checkpoint.directory()), embedding_name(layout), embedding_name(GptOssLayout::original)),
                 embedding_name(layout)};
  DecoderSpec spec = assemble_gpt_oss(binder, layout, c);
  if (const std::string& head = head_name(layout); c.tied_head && binder.has(head)) {
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: the config says tie_word_embeddings, which leaves no place for it", checkpoint.where(*checkpoint.find(head))),
                 head};
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
  return std::make_shared<const Model>(Model{*checkpoint, std::move(*spec), std::move(*stops), std::nullopt, nullptr});
}

}  // namespace althing::gpu
