// The spec is assembled twice from the same names as a checkpoint's: once to count bytes, once with addresses.
#include "gpu/models/gpt_oss_dummy.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "gpu/models/gpt_oss_layout.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {
namespace {

constexpr std::uint64_t tensor_alignment = 256;

std::optional<GptOssConfig> config_of(std::string_view size) {
  if (size != "20b" && size != "120b") return std::nullopt;
  const bool small = size == "20b";
  GptOssConfig c;
  c.hidden = c.intermediate = 2880;
  c.query_heads = 64;
  c.kv_heads = 8;
  c.head_dim = 64;
  c.experts = small ? 32 : 128;
  c.experts_per_token = 4;
  c.vocabulary = 201088;
  c.context_tokens_max = 131072;
  for (std::uint32_t layer = 0; layer < (small ? 24u : 36u); ++layer) c.windows.push_back(layer % 2 == 0 ? 128 : 0);
  c.rotary.theta = 150000.0;
  c.rotary.factor = 32.0;
  c.rotary.original_context = 4096;
  c.stop_tokens = {200002, 199999, 200012};
  return c;
}

// Gives out `base` and what follows, tensor after tensor; without a base it only counts.
class Reserve final : public TensorSource {
 public:
  explicit Reserve(const std::byte* base) : base_(base) {}

  bool has(std::string_view) const override { return false; }  // no plain experts
  TensorView take(const std::string& name, const std::vector<std::uint64_t>& shape, std::initializer_list<DType> types) override {
    TensorView view{*types.begin(), shape, base_ == nullptr ? nullptr : base_ + bytes_, name};
    bytes_ += (byte_count(view) + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
    return view;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const std::byte* base_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Model>> dummy_model(std::string_view size, std::uint64_t seed) {
  const auto config = config_of(size);
  if (!config) return Error{ErrorCode::invalid_argument, "there is no dummy model '" + std::string(size) + "'; use 20b or 120b", "load"};
  Reserve counter(nullptr);
  assemble_gpt_oss(counter, GptOssLayout::hugging_face, *config);
  const std::uint64_t bytes = counter.bytes();
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{
        ErrorCode::too_large,
        "the system gives no address space for the " + std::to_string(bytes) + " bytes of a dummy model: " + std::strerror(errno) + "; see ulimit -v",
        "load"};
  std::shared_ptr<const void> reserved(memory, [bytes](const void* address) { ::munmap(const_cast<void*>(address), bytes); });
  Reserve reserve(static_cast<const std::byte*>(memory));
  DecoderSpec spec = assemble_gpt_oss(reserve, GptOssLayout::hugging_face, *config);
  return std::make_shared<const Model>(Model{nullptr, std::move(spec), config->stop_tokens, seed, std::move(reserved)});
}

}  // namespace althing::gpu
