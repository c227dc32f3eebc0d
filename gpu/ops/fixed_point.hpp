// Sums of expert outputs as 64-bit fixed point: integers commute, so which rank holds an expert, and in which order outputs arrive, cannot change
// bits. One unit is 2^-36 (1.5e-11): below float's resolution for any sum larger than 1.2e-4 and far below any residual. A contribution
// must be finite and below 2^22 in magnitude, and a token sums at most 31 of them, so a sum stays below 2^27 * 2^36 = 2^63 and cannot wrap.
// What does not fit adds 0 and is counted: a token whose count is not zero gets NaN, which surfaces as `nonfinite`, never as a wrong number.
#pragma once

#include <cmath>
#include <cstdint>

namespace althing::gpu {

inline constexpr double fixed_point_unit = 0x1p-36;
inline constexpr double fixed_point_limit = 0x1p22;
inline constexpr std::uint32_t fixed_point_addends_max = 31;

inline bool fits_fixed_point(double value) { return std::abs(value) < fixed_point_limit; }  // false for NaN
// REQUIRES: fits_fixed_point(value). Rounds to nearest, ties to even.
inline std::int64_t to_fixed_point(double value) { return std::llrint(value * 0x1p36); }
inline float from_fixed_point(std::int64_t sum) { return static_cast<float>(static_cast<double>(sum) * fixed_point_unit); }

}  // namespace althing::gpu
