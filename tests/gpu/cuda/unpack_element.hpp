// One element of packed weights, read back on the host by the description in packed_matrix.hpp: the inverse that packing is tested against.
#pragma once

#include <cmath>
#include <cstring>

#include "gpu/cuda/pack.hpp"
#include "tests/gpu/cuda/host_packing.hpp"

namespace althing::tests {

// `matrix`: a host copy of one matrix of the shape; `row`: a packed row, padding included.
inline float unpack_element(const std::byte* matrix, const gpu::cuda::PackedMatrix& shape, std::uint32_t row, std::uint32_t k) {
  using namespace gpu::cuda;
  const std::byte* tile = matrix + tile_offset(shape, row / row_tile, k / k_tile);
  const std::uint32_t g = row % 8, high = row / 8 % 2, step = k % k_tile / 16, pair = k % 8 / 2, upper = k / 8 % 2, odd = k % 2;
  const std::uint32_t lane = 4 * g + pair, a = high + 2 * upper;
  const auto half = [&](std::uint32_t at) {
    std::uint16_t bits;
    std::memcpy(&bits, tile + at, 2);
    return bits;
  };
  if (shape.format == WeightFormat::bf16) return bf16_value(half(512 * step + 16 * lane + 4 * a + 2 * odd));
  if (shape.format == WeightFormat::fp8) {
    const auto code = static_cast<std::uint32_t>(tile[512 * (step / 2) + 16 * lane + 8 * (step % 2) + 2 * a + odd]);
    return std::ldexp(e4m3_value(code), -120) * bf16_value(half(1024));
  }
  const auto bit_at = [&](std::uint32_t at, std::uint32_t bit) { return static_cast<std::uint32_t>(tile[at + bit / 8]) >> bit % 8 & 1; };
  std::uint32_t code = 0, exponent = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const CodeBit at = code_bit(step, a, odd, i);
    code |= bit_at(16 * lane + 4 * (step / 2 * 2 + at.word), at.bit) << i;
  }
  for (std::uint32_t b = 0; b < 8; ++b) exponent |= bit_at(512 + 4 * g, exponent_bit(high + 2 * (k % k_tile / 32), b)) << b;
  return std::ldexp(e2m1[code], static_cast<int>(exponent) - 126 - 127);
}

}  // namespace althing::tests
