// Bytes as a safetensors file and as a shard index. What is accepted must be in bounds, disjoint and cover the data: touching every byte of every
// view lets the sanitizer see a lie. The first byte chooses whether the header length is taken from the input or made to fit, so that JSON is reached
// often.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/weights/safetensors.hpp"
#include "gpu/weights/shard_index.hpp"

namespace {

using namespace althing;

void check(const std::string& file) {
  // An allocation of exactly the file's size.
  const std::vector<char> bytes(file.begin(), file.end());
  const auto views = gpu::parse_safetensors("fuzz", std::as_bytes(std::span(bytes)));
  if (!views) {
    if (views.error().message.empty() || views.error().message.find('\n') != std::string::npos) std::abort();
    return;
  }
  std::uint64_t covered = 0;
  volatile unsigned sum = 0;
  for (const gpu::TensorView& view : *views) {
    const std::uint64_t size = gpu::byte_count(view);
    covered += size;
    for (std::uint64_t i = 0; i < size; ++i) sum = sum + std::to_integer<unsigned>(view.data[i]);
  }
  if (covered > bytes.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) {
    check(std::string(text));
  } else if (data[0] % 3 == 1) {
    // The header ends at the last brace; the rest is tensor data.
    const std::size_t brace = text.rfind('}');
    const std::size_t length = brace == std::string_view::npos ? text.size() : brace + 1;
    std::string file;
    for (unsigned i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
    check(file.append(text));
  } else if (const auto index = gpu::parse_shard_index("fuzz", text); index) {
    for (const auto& [tensor, shard] : index->shards)
      if (shard.find('/') != std::string::npos || !shard.ends_with(".safetensors")) std::abort();
  }
  return 0;
}
