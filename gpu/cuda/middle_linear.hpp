// Linear layers for 9 to 256 columns (batches of decode): too many for stream_linear.hpp, too few for tile_linear.hpp. Weights cross the memory bus
// once and are expanded once; what must be kept small is the tokens' way from L2 into each multiprocessor, and how long most of them idle.
//
// One matrix with few rows (q k v, attention output) is cut along both rows and inputs: a cluster of blocks shares a row block, each block has its
// own segments of the inputs, and the segment sums are exchanged at the end, because numerics.hpp fixes their order ("split").
// Much more weights than fit at once (experts, output head) are shared out as runs of row tiles of equal length, one a multiprocessor ("whole").
// Launch shapes are computed here, without a device.
#pragma once

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/tile_linear.hpp"

namespace althing::gpu::cuda {

template <class Epilogue>
struct MiddleLinearArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (rows, input_stride), aligned to 16 bytes; elements from weights.in to k_padded(weights.in) are zero
  std::uint32_t input_stride = 0;        // elements; a multiple of 8, at least k_padded(weights.in)
  Columns columns;                       // of each of weights.count experts
  Epilogue epilogue;
  std::uint32_t columns_max = 0;  // that one matrix has, as the host knows it; columns beyond it may be left out
  bool weights_are_known = true;  // which matrices are used was decided before the previous kernel began, so weights may be read before it ends
};

inline constexpr std::uint32_t middle_shared_bytes = 227u << 10;  // of a block that has a multiprocessor to itself

// k tiles that are copied at once: about 2 KiB, below which copies are slow.
constexpr std::uint32_t middle_chunk(WeightFormat format) { return format == WeightFormat::bf16 ? 1u : format == WeightFormat::fp8 ? 2u : 5u; }

// Split. A block has 8 row tiles and the segments [segments * rank / parts, segments * (rank + 1) / parts) of its cluster's `parts` blocks.
inline constexpr std::uint32_t split_row_tiles = 8;
inline constexpr std::uint32_t split_sums_max = 3;  // segments of a block: their sums stay in registers until the exchange
inline constexpr std::uint32_t split_parts_max = 8;
inline constexpr std::uint32_t split_exchange_bytes_max = 208u << 10;

struct SplitShape {
  std::uint32_t parts = 0;  // 0: not possible
  std::uint32_t row_blocks = 0;
  std::uint32_t columns = 0;  // of a block: 32, 64 or 128
  std::uint32_t column_blocks = 0;
};

constexpr std::uint32_t split_first_segment(std::uint32_t segments, std::uint32_t parts, std::uint32_t rank) { return segments * rank / parts; }

// What a block of the cluster receives: for its share of the 16 x 8 pieces of the result, a sum of the first block's segments and one of each
// other's.
constexpr std::uint32_t split_sums(std::uint32_t segments, std::uint32_t parts) { return 1 + segments - split_first_segment(segments, parts, 1); }
constexpr std::uint32_t split_exchange_bytes(std::uint32_t segments, std::uint32_t parts, std::uint32_t columns) {
  return split_sums(segments, parts) * split_row_tiles * ceil_div(columns / 8, parts) * 512;
}

// Multiprocessors come in groups of 16 or 18, and a cluster lies inside a group.
constexpr std::uint32_t clusters_at_once(std::uint32_t parts, std::uint32_t processors) { return processors / 16 * (16 / parts); }

// The fewest parts whose sums can be held; more, as long as that makes the longest part shorter and all blocks run at once.
constexpr SplitShape split_shape(const PackedMatrix& m, std::uint32_t columns_max, std::uint32_t processors) {
  SplitShape s;
  s.columns = columns_max <= 32 ? 32 : columns_max <= 64 ? 64 : 128;
  s.row_blocks = ceil_div(m.row_tiles(), split_row_tiles);
  s.column_blocks = columns_max == 0 ? 1 : ceil_div(columns_max, s.columns);
  const std::uint32_t segments = k_segments(m.in);
  std::uint32_t longest = split_sums_max + 1;
  for (std::uint32_t parts = 1; parts <= split_parts_max && parts <= segments; ++parts) {
    const std::uint32_t length = ceil_div(segments, parts);
    if (length >= longest || split_exchange_bytes(segments, parts, s.columns) > split_exchange_bytes_max) continue;
    if (s.parts != 0 && s.row_blocks * s.column_blocks > clusters_at_once(parts, processors)) continue;
    s.parts = parts;
    longest = length;
  }
  return s;
}

// Whole. The list of work is the row tiles of every column block of every expert; a run of it is worked off in pieces of consecutive row tiles of one
// column block, as many as a block has warps that multiply.
struct WholePiece {
  std::uint32_t column_block = 0;  // counted over all experts
  std::uint32_t row = 0;           // first row tile
  std::uint32_t tiles = 0;
};
constexpr std::uint32_t whole_run_begin(std::uint32_t column_blocks, std::uint32_t row_tiles, std::uint32_t block, std::uint32_t blocks) {
  return static_cast<std::uint32_t>(std::uint64_t{column_blocks} * row_tiles * block / blocks);
}
constexpr WholePiece whole_piece(std::uint32_t position, std::uint32_t end, std::uint32_t row_tiles, std::uint32_t tiles_max) {
  const std::uint32_t column_block = position / row_tiles, row = position - column_block * row_tiles;
  std::uint32_t tiles = end - position;
  if (tiles > row_tiles - row) tiles = row_tiles - row;
  return {column_block, row, tiles < tiles_max ? tiles : tiles_max};
}

// cudaErrorInvalidValue: a weight format that is not named, an empty matrix, more than tile_experts_max experts, a stride that does not fit, or,
// where only one matrix is possible (q k v, attention output), more of them or too many segments to split.
cudaError_t middle_linear(const MiddleLinearArgs<QkvEpilogue>& args, cudaStream_t stream);       // bf16, fp8; one matrix
cudaError_t middle_linear(const MiddleLinearArgs<ResidualEpilogue>& args, cudaStream_t stream);  // bf16, fp8; one matrix
cudaError_t middle_linear(const MiddleLinearArgs<SwigluEpilogue>& args, cudaStream_t stream);    // bf16, mxfp4
cudaError_t middle_linear(const MiddleLinearArgs<PlainEpilogue>& args, cudaStream_t stream);     // bf16, fp8, mxfp4

}  // namespace althing::gpu::cuda
