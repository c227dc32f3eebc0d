// Inverse frequencies of rotary positions, plain or stretched by YaRN. Bounds of the ramp stay unrounded unless the config says `truncate`:
// rounding moves frequencies by up to 76 % on gpt-oss.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu/decoder_spec.hpp"

namespace althing::gpu {

struct RotaryConfig {
  double theta = 10000.0;
  // YaRN; a factor of 1 means plain positions.
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::uint32_t original_context = 0;  // tokens; REQUIRED above 0 when factor > 1
  bool truncate = false;
  std::optional<double> attention_factor;  // else 0.1 ln(factor) + 1
};

// REQUIRES: head_dim even and above 0, theta > 1, beta_fast > beta_slow > 0, factor >= 1.
Rotary make_rotary(std::uint32_t head_dim, const RotaryConfig& config);

}  // namespace althing::gpu
