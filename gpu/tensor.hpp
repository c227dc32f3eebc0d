// A tensor that somebody else owns: type, shape and address. Checkpoints hand these out into their mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace althing::gpu {

enum class DType : std::uint8_t { f32, f16, bf16, u8, i64 };

constexpr std::size_t size_of(DType type) {
  constexpr std::size_t sizes[] = {4, 2, 2, 1, 8};
  return sizes[static_cast<int>(type)];
}
constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"F32", "F16", "BF16", "U8", "I64"};
  return names[static_cast<int>(type)];
}

struct TensorView {
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
  const std::byte* data = nullptr;  // row-major, may be unaligned for its type
  std::string name;                 // in the file, for messages

  bool empty() const { return data == nullptr; }
};

}  // namespace althing::gpu
