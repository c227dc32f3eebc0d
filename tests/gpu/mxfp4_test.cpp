// MXFP4: all bytes under all scales against the definition.
#include "gpu/weights/mxfp4.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace althing::gpu {
namespace {

// E2M1 from its definition: sign, two exponent bits with bias 1, one mantissa bit; exponent 0 is subnormal.
double e2m1_by_definition(unsigned code) {
  const double sign = (code & 8u) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>(code >> 1 & 3u);
  const double mantissa = code & 1u;
  return sign * (exponent == 0 ? mantissa * 0.5 : std::ldexp(1.0 + mantissa * 0.5, exponent - 1));
}

TEST(Mxfp4, every_byte_under_every_scale_is_as_defined) {
  for (unsigned scale = 0; scale < 255; ++scale) {
    for (unsigned byte = 0; byte < 256; byte += 16) {
      std::array<std::byte, mxfp4_group / 2> block;
      for (unsigned i = 0; i < 16; ++i) block[i] = static_cast<std::byte>(byte + i);
      std::array<float, mxfp4_group> out;
      expand(block, static_cast<std::uint8_t>(scale), out);
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned code = half == 0 ? (byte + i) & 15u : (byte + i) >> 4;
          // Rounding the exact value to float is exact, or infinite above the range.
          const float expected = static_cast<float>(std::ldexp(e2m1_by_definition(code), static_cast<int>(scale) - 127));
          ASSERT_EQ(std::bit_cast<std::uint32_t>(out[2 * i + half]), std::bit_cast<std::uint32_t>(expected)) << scale << " " << code;
        }
      }
    }
  }
}

TEST(Mxfp4, scale_255_makes_the_group_nan) {
  std::array<std::byte, mxfp4_group / 2> block{};
  std::array<float, mxfp4_group> out{};
  expand(block, mxfp4_scale_nan, out);
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

TEST(Mxfp4, a_row_is_its_groups_in_order) {
  constexpr std::size_t groups = 5;
  std::vector<std::byte> blocks(groups * 16), scales(groups);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i * 37 + 11);
  for (std::size_t i = 0; i < groups; ++i) scales[i] = static_cast<std::byte>(120 + i);
  std::vector<float> row(groups * 32);
  expand_row(blocks, scales, row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const unsigned byte = std::to_integer<unsigned>(blocks[i / 2]);
    const double expected = std::ldexp(e2m1_by_definition(i % 2 == 0 ? byte & 15u : byte >> 4), static_cast<int>(120 + i / 32) - 127);
    EXPECT_EQ(row[i], expected) << i;
  }
}

}  // namespace
}  // namespace althing::gpu
