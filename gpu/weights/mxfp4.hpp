// MXFP4 as defined by the OCP Microscaling Formats specification: groups of 32 values along the input, 4-bit E2M1 codes under one E8M0 scale.
// 16 bytes a group; byte b holds element 2b in its low nibble and 2b+1 in its high one. value = code value x 2^(scale - 127).
// Scale 255 is NaN by the specification and makes the whole group NaN here; loading does not read scales (they are gigabytes), verify_model does and
// names such groups. Every other value is exact in float: codes have 2 significant bits, and 0.5 x 2^-127 is a representable subnormal.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace althing::gpu {

inline constexpr std::uint32_t mxfp4_group = 32;  // values under one scale
inline constexpr std::uint8_t mxfp4_scale_nan = 255;

inline constexpr std::array<float, 16> e2m1_values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// 2^(scale - 127).
constexpr float e8m0_value(std::uint8_t scale) {
  if (scale == mxfp4_scale_nan) return std::numeric_limits<float>::quiet_NaN();
  // The bit pattern of a float with this exponent field; 2^-127 is below the normal range and has a mantissa bit instead.
  return std::bit_cast<float>(scale == 0 ? 0x0040'0000u : std::uint32_t{scale} << 23);
}

// One group. Products over the float range (scale 254 with values of 2 and more, 253 with 4 and more) become infinity.
constexpr void expand(std::span<const std::byte, mxfp4_group / 2> block, std::uint8_t scale, std::span<float, mxfp4_group> out) {
  const float factor = e8m0_value(scale);
  for (std::size_t b = 0; b < block.size(); ++b) {
    const auto codes = std::to_integer<unsigned>(block[b]);
    out[2 * b] = e2m1_values[codes & 15u] * factor;
    out[2 * b + 1] = e2m1_values[codes >> 4] * factor;
  }
}

// A row of scales.size() groups. REQUIRES: blocks hold 16 bytes and out 32 floats a scale.
constexpr void expand_row(std::span<const std::byte> blocks, std::span<const std::byte> scales, std::span<float> out) {
  for (std::size_t g = 0; g < scales.size(); ++g)
    expand(blocks.subspan(g * (mxfp4_group / 2)).first<mxfp4_group / 2>(), std::to_integer<std::uint8_t>(scales[g]),
           out.subspan(g * mxfp4_group).first<mxfp4_group>());
}

}  // namespace althing::gpu
