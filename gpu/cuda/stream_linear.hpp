// y = W x for few columns: the weights stream through shared memory once and are used for up to 24 columns at a time. The kernel of decode steps.
// Launch shapes are computed here, without a device, so that tests can look at them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t stream_warps_max = 9;         // of a block; a segment has one warp, more segments take turns
inline constexpr std::uint32_t stream_column_tiles_max = 3;  // of 8 columns, in one pass over the weights
inline constexpr std::uint32_t processor_shared_bytes = 227u << 10;

// k tiles that are copied at once: about 2 KiB, below which copies are slow.
constexpr std::uint32_t stream_chunk(WeightFormat format) { return format == WeightFormat::bf16 ? 1u : format == WeightFormat::fp8 ? 2u : 5u; }

struct StreamShape {
  std::uint32_t warps = 0;          // of a block
  std::uint32_t column_tiles = 0;   // of 8 columns
  std::uint32_t row_blocks = 0;     // blocks along the rows: block b takes row tiles b, b + row_blocks, …
  std::uint32_t column_blocks = 0;  // passes over the weights
  std::uint32_t matrices = 0;       // experts that can be active at once
  std::uint32_t segment_tiles = 0;  // k tiles of a segment
  std::uint32_t input_rows = 0;     // columns that have room in shared memory
  std::uint32_t slots = 0;          // chunks in flight a warp
  std::uint32_t shared_bytes = 0;
  std::uint32_t resident = 0;  // blocks that fit on one multiprocessor
};

struct StreamWork {
  std::uint32_t columns_max = 0;       // of one matrix
  std::uint32_t columns_expected = 0;  // likewise, as a rule: what a pass over the weights is made for
  std::uint32_t matrices = 1;          // how many can have columns at once
};

// Bytes of a block besides the weights in flight. Each warp holds its own segments of every column, 8 elements apart so that ldmatrix meets no bank twice.
constexpr std::uint32_t stream_fixed_bytes(const PackedMatrix& m, std::uint32_t warps, std::uint32_t column_tiles, std::uint32_t input_rows) {
  const std::uint32_t turns = ceil_div(k_segments(m.in), warps);
  return warps * input_rows * turns * (k_segment_tiles(m.in) * k_tile + 8) * 2 + 2 * warps * column_tiles * 512;
}

// Picks the most blocks a multiprocessor that still leave each warp two chunks in flight.
constexpr StreamShape stream_shape(const PackedMatrix& m, const StreamWork& work, std::uint32_t processors) {
  constexpr std::uint32_t slots_max = 4;
  StreamShape s;
  s.warps = std::min(k_segments(m.in), stream_warps_max);
  s.segment_tiles = k_segment_tiles(m.in);
  s.matrices = work.matrices;
  const std::uint32_t slot_bytes = s.warps * stream_chunk(m.format) * tile_bytes(m.format) + s.warps * 8;
  const std::uint32_t wanted = std::min(ceil_div(std::max(work.columns_expected, 1u), 8), stream_column_tiles_max);
  for (s.column_tiles = wanted; s.column_tiles > 0; --s.column_tiles) {
    s.input_rows = std::min(work.columns_max, s.column_tiles * 8);
    const std::uint32_t fixed = stream_fixed_bytes(m, s.warps, s.column_tiles, s.input_rows);
    for (s.resident = s.column_tiles == 1 ? 3 : s.column_tiles == 2 ? 2 : 1; s.resident > 0; --s.resident) {
      const std::uint32_t room = processor_shared_bytes / s.resident - 2048;
      s.slots = room > fixed ? std::min((room - fixed) / slot_bytes, slots_max) : 0;
      if (s.slots >= 2) break;
    }
    if (s.resident > 0) {
      s.shared_bytes = fixed + s.slots * slot_bytes;
      break;
    }
  }
  s.column_blocks = ceil_div(work.columns_max, std::max(1u, s.column_tiles * 8));
  // Even shares: the fewest tiles a block with which all blocks are resident at once.
  const std::uint32_t tiles = m.row_tiles();
  const std::uint32_t share = ceil_div(tiles, std::max(1u, processors * s.resident / s.matrices));
  s.row_blocks = ceil_div(tiles, share);
  return s;
}

// Whether a matrix of these inputs fits at all.
constexpr bool supports_stream(const PackedMatrix& m) { return stream_shape(m, {8, 8, 1}, 1).column_tiles > 0; }

}  // namespace althing::gpu::cuda
