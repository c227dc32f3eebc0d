// A rank's part of a weight, as ops see it: where element (o, k) lies and in which format, whatever tensor it was cut from. Weights stay in the
// checkpoint's mapping and format; a backend expands rows exactly when it computes. Addresses may be unaligned for their type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/tensor.hpp"

namespace althing::gpu {

enum class MatrixFormat : std::uint8_t { f32, bf16, mxfp4 };

inline constexpr std::uint32_t mxfp4_group = 32;  // elements under one scale, 16 bytes

inline float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// (out, in). Plain formats: element (o, k) at data[o * row_stride + k * column_stride], in elements. MXFP4: rows of in/32 groups,
// row_stride counts groups, group g of row o is the 16 bytes at data + 16 * (o * row_stride + g) and scales[o * row_stride + g].
struct Matrix {
  MatrixFormat format = MatrixFormat::f32;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  std::uint32_t out = 0;
  std::uint32_t in = 0;
  std::uint64_t row_stride = 0;
  std::uint64_t column_stride = 1;

  bool empty() const { return data == nullptr; }
  std::uint64_t bytes() const {
    const std::uint64_t elements = std::uint64_t{out} * in;
    if (format == MatrixFormat::mxfp4) return elements / mxfp4_group * 17;
    return elements * (format == MatrixFormat::bf16 ? 2 : 4);
  }
};

// (size), bf16 or f32; may be empty (no bias, no sinks).
struct Vector {
  DType dtype = DType::f32;
  const std::byte* data = nullptr;
  std::uint32_t size = 0;

  bool empty() const { return data == nullptr; }
  float at(std::size_t index) const {
    if (dtype == DType::bf16) {
      std::uint16_t bits;
      std::memcpy(&bits, data + index * 2, sizeof bits);
      return bf16_to_f32(bits);
    }
    float value;
    std::memcpy(&value, data + index * 4, sizeof value);
    return value;
  }
  // REQUIRES: begin + count <= size.
  Vector part(std::uint64_t begin, std::uint32_t count) const { return empty() ? Vector{} : Vector{dtype, data + begin * size_of(dtype), count}; }
};

}  // namespace althing::gpu
