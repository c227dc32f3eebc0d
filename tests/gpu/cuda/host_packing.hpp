// Packed weights made on the host, straight from the description in packed_matrix.hpp and slow: what the device's packing and the kernels are
// compared with.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/cuda/packed_matrix.hpp"
#include "tests/gpu/cuda/device_array.hpp"

namespace althing::tests {

// A matrix as values and as tiles.
struct HostMatrix {
  std::uint32_t out = 0, in = 0;
  std::vector<float> values;     // (out, in) exact
  std::vector<std::byte> tiles;  // packed
};

struct PackedPlace {
  std::uint32_t row, k;
};

// Element e (0, 1: even, odd k) of register r of step s of `lane` in a tile.
inline PackedPlace place_of(std::uint32_t lane, std::uint32_t s, std::uint32_t r, std::uint32_t e) {
  const std::uint32_t g = lane / 4, q = lane % 4;
  return {g + 8 * (r % 2), 16 * s + 2 * q + 8 * (r / 2) + e};
}

// Where a bit of an mxfp4 code is: in the word of which step of its pair (0: even, 1: odd), and at which of its bits.
struct CodeBit {
  std::uint32_t word, bit;
};

// Bit i (0: m, 1: e, 2: e, 3: s) of element e of register r of step s.
inline CodeBit code_bit(std::uint32_t s, std::uint32_t r, std::uint32_t e, std::uint32_t i) {
  static constexpr std::uint32_t own[3][4] = {{6, 7, 8, 15}, {2, 3, 4, 11}, {28, 29, 30, 5}};
  static constexpr CodeBit shared[2][4] = {{{1, 0}, {1, 1}, {0, 0}, {1, 9}}, {{1, 26}, {0, 25}, {0, 26}, {0, 1}}};
  CodeBit at = r < 3 ? CodeBit{s % 2, own[r][i]} : shared[s % 2][i];
  if (e == 1) at.bit ^= 16;
  return at;
}

// Bit b of the exponent of row g + 8 (i % 2) and half i / 2 in the word of row g.
inline std::uint32_t exponent_bit(std::uint32_t i, std::uint32_t b) { return (16 * (i % 2) + 7 + b + 32 - 8 * (i / 2)) % 32; }

inline constexpr float e2m1[16] = {0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -.5F, -1, -1.5F, -2, -3, -4, -6};

inline float e4m3_value(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(1.0F + static_cast<float>(mantissa) / 8, static_cast<int>(exponent) - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

// A random matrix of `format` in `order`. Scales are chosen so that values have a size of about 0.05.
inline HostMatrix random_matrix(gpu::cuda::WeightFormat format, gpu::cuda::RowOrder order, std::uint32_t block, std::uint32_t out, std::uint32_t in,
                                std::mt19937& random) {
  using namespace gpu::cuda;
  HostMatrix m{out, in, std::vector<float>(std::size_t{out} * in), {}};
  const PackedMatrix shape{format, nullptr, out, in, 1};
  m.tiles.resize(shape.bytes());
  std::vector<std::uint32_t> codes(std::size_t{out} * in);
  const std::uint32_t groups = ceil_div(in, 32), fp8_columns = ceil_div(in, 128);
  std::vector<std::uint32_t> scales(std::size_t{out} * groups);
  std::vector<int> exponents(std::size_t{ceil_div(out, 128)} * fp8_columns);
  for (auto& s : scales) s = 118 + random() % 6;
  for (auto& e : exponents) e = -9 + static_cast<int>(random() % 4);
  for (std::uint32_t r = 0; r < out; ++r)
    for (std::uint32_t k = 0; k < in; ++k) {
      std::uint32_t& code = codes[std::size_t{r} * in + k];
      float& value = m.values[std::size_t{r} * in + k];
      if (format == WeightFormat::bf16) {
        code = bf16_bits(std::normal_distribution<float>(0.0F, 0.05F)(random));
        value = bf16_value(static_cast<std::uint16_t>(code));
      } else if (format == WeightFormat::mxfp4) {
        code = random() % 16;
        value = std::ldexp(e2m1[code], static_cast<int>(scales[std::size_t{r} * groups + k / 32]) - 127);
      } else {
        code = random() % 256;
        if ((code & 0x7F) == 0x7F) code = 0;  // NaN
        value = std::ldexp(e4m3_value(code), exponents[std::size_t{r / 128} * fp8_columns + k / 128]);
      }
    }
  const std::uint32_t tiles = k_tiles(in), bytes = tile_bytes(format);
  for (std::uint32_t t = 0; t < shape.row_tiles(); ++t)
    for (std::uint32_t kt = 0; kt < tiles; ++kt) {
      std::byte* tile = m.tiles.data() + (std::size_t{t} * tiles + kt) * bytes;
      for (std::uint32_t lane = 0; lane < 32; ++lane)
        for (std::uint32_t s = 0; s < 4; ++s)
          for (std::uint32_t r = 0; r < 4; ++r)
            for (std::uint32_t e = 0; e < 2; ++e) {
              const PackedPlace p = place_of(lane, s, r, e);
              const std::uint32_t row = source_row(order, block, t * 16 + p.row), k = kt * 64 + p.k;
              const std::uint32_t code = row < out && k < in ? codes[std::size_t{row} * in + k] : 0;
              if (format == WeightFormat::bf16) {
                const std::uint16_t bits = static_cast<std::uint16_t>(code);
                std::memcpy(tile + 512 * s + 16 * lane + 4 * r + 2 * e, &bits, 2);
              } else if (format == WeightFormat::fp8) {
                tile[512 * (s / 2) + 16 * lane + 8 * (s % 2) + 2 * r + e] = static_cast<std::byte>(code);
              } else {
                for (std::uint32_t i = 0; i < 4; ++i) {
                  const CodeBit at = code_bit(s, r, e, i);
                  tile[16 * lane + 4 * (s / 2 * 2 + at.word) + at.bit / 8] |= static_cast<std::byte>((code >> i & 1) << at.bit % 8);
                }
              }
            }
      if (format == WeightFormat::mxfp4)
        for (std::uint32_t g = 0; g < 8; ++g)
          for (std::uint32_t i = 0; i < 4; ++i) {
            const std::uint32_t row = source_row(order, block, t * 16 + g + 8 * (i % 2)), group = kt * 2 + i / 2;
            if (row >= out || group >= groups) continue;
            for (std::uint32_t b = 0; b < 8; ++b) {
              const std::uint32_t bit = exponent_bit(i, b);
              tile[512 + 4 * g + bit / 8] |= static_cast<std::byte>(((scales[std::size_t{row} * groups + group] + 126) >> b & 1) << bit % 8);
            }
          }
      if (format == WeightFormat::fp8) {
        const std::uint32_t row = source_row(order, block, t * 16);
        const std::uint16_t factor = static_cast<std::uint16_t>((exponents[std::size_t{row / 128} * fp8_columns + kt * 64 / 128] + 120 + 127) << 7);
        std::memcpy(tile + 1024, &factor, 2);
      }
    }
  return m;
}

}  // namespace althing::tests
