// y = W x for few columns: the weights stream through registers once and are used for up to 32 columns at a time. The kernel of decode steps.
// Launch shapes are computed here, without a device, so that tests can look at them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t stream_warps_max = 9;       // of a block; a segment has one warp, more segments take turns
inline constexpr std::uint32_t stream_columns_max = 32;    // of one pass over the weights
inline constexpr std::uint32_t stream_shared_max = 227u << 10;

struct StreamShape {
  std::uint32_t warps = 0;         // of a block
  std::uint32_t column_tiles = 0;  // of 8 columns: 1, 2 or 4
  std::uint32_t row_blocks = 0;    // blocks along the rows: block b takes row tiles b, b + row_blocks, …
  std::uint32_t column_blocks = 0;
  std::uint32_t matrices = 0;      // grid's z: experts that can be active at once
  std::uint32_t input_rows = 0;    // columns that have room in shared memory
  std::uint32_t shared_bytes = 0;
};

struct StreamWork {
  std::uint32_t columns_max = 0;       // of one matrix
  std::uint32_t columns_expected = 0;  // likewise, as a rule: what a pass over the weights is made for
  std::uint32_t matrices = 1;          // how many can have columns at once
};

constexpr StreamShape stream_shape(const PackedMatrix& matrix, const StreamWork& work, std::uint32_t processors) {
  StreamShape s;
  const std::uint32_t columns = work.columns_max, matrices = work.matrices;
  s.warps = std::min(k_segments(matrix.in), stream_warps_max);
  s.column_tiles = work.columns_expected <= 8 ? 1 : work.columns_expected <= 16 ? 2 : 4;
  s.column_blocks = ceil_div(columns, s.column_tiles * 8);
  s.matrices = matrices;
  s.input_rows = std::min(columns, s.column_tiles * 8);
  // Even shares: the fewest tiles a block with which all blocks are resident at once.
  const std::uint32_t tiles = matrix.row_tiles();
  const std::uint32_t resident = processors * (s.column_tiles == 1 ? 3 : s.column_tiles == 2 ? 2 : 1);
  const std::uint32_t share = ceil_div(tiles, std::max(1u, resident / matrices));
  s.row_blocks = ceil_div(tiles, share);
  const std::uint32_t input_bytes = s.input_rows * (k_padded(matrix.in) + 8 * s.warps * ceil_div(k_segments(matrix.in), s.warps)) * 2;
  s.shared_bytes = input_bytes + 2 * s.warps * s.column_tiles * 512;
  return s;
}

}  // namespace althing::gpu::cuda
