// Linear layers in the backend's one order of additions. The input dimension is cut into segments of 128; in each, 8 lanes (k mod 8) run a
// chain of fused multiply-adds from zero; segment results are added in order, lane by lane; at the end lanes are added as
// ((0+4)+(2+6))+((1+5)+(3+7)). Each output depends on its weight row and its input row only, so batches, tiles and threads cannot change a bit.
// Rows of weights are expanded to float (exactly) eight at a time and used for all tokens before the next eight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/ops/matrix.hpp"

namespace althing::gpu::cpu {

inline constexpr std::size_t k_segment = 128;
inline constexpr std::size_t k_lanes = 8;
inline constexpr std::uint32_t row_block = 8;  // weight rows expanded together

constexpr std::size_t padded(std::size_t size) { return (size + k_lanes - 1) / k_lanes * k_lanes; }

// One float buffer a thread: row_block rows of padded(in).
constexpr std::size_t expansion_floats(std::size_t in_max) { return row_block * padded(in_max); }

// expanded[r * padded(in) + k] = weight(row + r, k) for r < rows; rows beyond and the padding are 0. REQUIRES: rows <= row_block.
void expand_rows(const Matrix& matrix, std::uint32_t row, std::uint32_t rows, float* expanded);

// sums[t * row_block + r] = expanded row r times inputs[t]. inputs[t] has padded(in) floats, zeros behind `in`.
void multiply_block(const float* expanded, std::size_t in, const float* const* inputs, std::size_t tokens, float* sums);

struct LinearArgs {
  const Matrix& matrix;
  const Vector& bias;
  const float* const* inputs;  // (tokens) rows of padded(matrix.in)
  float* const* outputs;       // (tokens) rows of at least matrix.out
  std::size_t tokens = 0;
};

constexpr std::uint32_t row_blocks(std::uint32_t rows) { return (rows + row_block - 1) / row_block; }

// Rows [block * row_block, + row_block) of y = W x + b. `scratch`: expansion_floats(in) + tokens * row_block floats.
void linear_block(const LinearArgs& args, std::uint32_t block, float* scratch);

}  // namespace althing::gpu::cpu
