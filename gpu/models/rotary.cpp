// Everything is computed in double and rounded to float once.
#include "gpu/models/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace althing::gpu {

namespace {

// The dimension pair that turns `rotations` times within the original context, as a real number.
double pair_of_rotations(std::uint32_t head_dim, const RotaryConfig& c, double rotations) {
  return head_dim * std::log(c.original_context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(c.theta));
}

}  // namespace

Rotary make_rotary(std::uint32_t head_dim, const RotaryConfig& c) {
  const std::uint32_t pairs = head_dim / 2;
  const bool stretched = c.factor > 1.0;
  double low = 0.0, high = 0.0;
  if (stretched) {
    low = pair_of_rotations(head_dim, c, c.beta_fast);
    high = pair_of_rotations(head_dim, c, c.beta_slow);
    if (c.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    // The upper clamp is head_dim - 1, not pairs - 1; it matters for small models only.
    low = std::max(low, 0.0);
    high = std::min(high, head_dim - 1.0);
    // The two may meet when both were clamped: a step instead of a division by zero. Crossed bounds stay crossed, as in the reference.
    if (high == low) high += 0.001;
  }
  Rotary rotary;
  rotary.inverse_frequencies.resize(pairs);
  for (std::uint32_t j = 0; j < pairs; ++j) {
    const double plain = std::pow(c.theta, -2.0 * j / head_dim);
    const double ramp = stretched ? std::clamp((j - low) / (high - low), 0.0, 1.0) : 0.0;
    rotary.inverse_frequencies[j] = static_cast<float>(ramp * plain / c.factor + (1.0 - ramp) * plain);
  }
  rotary.attention_factor = static_cast<float>(c.attention_factor.value_or(stretched ? 0.1 * std::log(c.factor) + 1.0 : 1.0));
  return rotary;
}

}  // namespace althing::gpu
