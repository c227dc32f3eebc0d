// y = W x for few columns: the weights stream through a multiprocessor once and are used for up to 24 columns at a time. The kernel of decode
// steps. Launch shapes are computed here, without a device, so that tests can look at them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

// epilogues.cuh
struct QkvEpilogue;
struct ResidualEpilogue;
struct SwigluEpilogue;
struct PlainEpilogue;

template <class Epilogue>
struct StreamArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (input rows, stride); padding beyond `in` is zero
  std::uint32_t input_stride = 0;
  Columns columns;
  Epilogue epilogue;
  bool weights_are_known = true;  // which matrices are used was decided before the previous kernel began, so weights may be read before it ends
};

inline constexpr std::uint32_t stream_column_tiles_max = 3;  // of 8 columns, in one pass over the weights
inline constexpr std::uint32_t stream_pieces_max = 2;        // whose inputs lie in shared memory at once; a piece is one pass over one matrix
inline constexpr std::uint32_t stream_groups_max = 15;       // each has one of the hardware's barriers
inline constexpr std::uint32_t stream_experts_max = 256;
inline constexpr std::uint32_t stream_columns_few = 4;
inline constexpr std::uint32_t stream_warps_few = 18;
inline constexpr std::uint32_t stream_shared_max = (227u << 10) - 4096;  // dynamic, of a block

// The segment length that a kernel is made for: 5 or 8 where all segments are that long and not too many, else 0: any length up to 8, at some cost.
constexpr std::uint32_t stream_segment(std::uint32_t in) {
  const std::uint32_t size = k_segment_tiles(in);
  return k_tiles(in) % size == 0 && (size == 5 || (size == 8 && k_segments(in) <= 8)) ? size : 0;
}
// Warps of a block, of which there is one a multiprocessor: as many as the registers and the inputs leave room for. (With registers cut to half, so
// that two blocks fit, the compiler spills weights that are on their way, which waits for them: a third slower.)
constexpr std::uint32_t stream_warps(std::uint32_t segment, std::uint32_t column_tiles) {
  if (segment == 8) return 16;
  return segment == 5 && column_tiles == 1 ? 28 : 18;
}
// Units of a warp's weights that are on their way at once (weight_stream.cuh): 50 to 140 KB a multiprocessor, less where many columns take the room.
constexpr std::uint32_t stream_depth(WeightFormat format, std::uint32_t segment, std::uint32_t column_tiles) {
  if (format == WeightFormat::mxfp4) return segment == 0 ? 8 : segment;
  if (segment == 8) return column_tiles == 1 ? 8 : format == WeightFormat::fp8 ? 4 : 2;
  return segment == 5 ? 5 : 4;
}
constexpr std::uint32_t stream_weights_bytes(WeightFormat format, std::uint32_t segment, std::uint32_t column_tiles) {
  return format == WeightFormat::mxfp4 ? 0 : stream_depth(format, segment, column_tiles) * (format == WeightFormat::bf16 ? 1024 : 640);
}
// Bytes of one column's part of a segment in shared memory: 16 more than there are, so that ldmatrix meets no bank twice.
constexpr std::uint32_t stream_column_bytes(std::uint32_t segment) { return (segment == 0 ? 8 : segment) * k_tile * 2 + 16; }

struct StreamShape {
  std::uint32_t segments = 0;       // of K: warps that share a row tile
  std::uint32_t groups = 0;         // row tiles that a block works on at once
  std::uint32_t column_tiles = 0;   // of 8 columns; 0: the matrix is not supported
  std::uint32_t blocks = 0;         // all resident; they share the row tiles of all passes over all matrices that have columns
  std::uint32_t segment_tiles = 0;  // k tiles of a segment
  std::uint32_t input_rows = 0;     // columns that have room in shared memory
  std::uint32_t pieces = 0;         // whose inputs lie there at once
  std::uint32_t shared_bytes = 0;
};

struct StreamWork {
  std::uint32_t columns_max = 0;       // of one matrix
  std::uint32_t columns_expected = 0;  // likewise, as a rule: what a pass over the weights is made for
  std::uint32_t matrices = 1;          // how many can have columns at once
};

// Of `shape`'s dynamic shared memory: the inputs of one piece, (segments, input_rows, stream_column_bytes); the segments' sums of one item.
constexpr std::uint32_t stream_piece_bytes(const PackedMatrix& m, const StreamShape& s) {
  return s.segments * s.input_rows * stream_column_bytes(stream_segment(m.in));
}
constexpr std::uint32_t stream_sums_bytes(const StreamShape& s) { return s.segments * s.column_tiles * 512; }
constexpr std::uint32_t stream_shared_bytes(const PackedMatrix& m, const StreamShape& s) {
  const std::uint32_t weights = s.segments * stream_weights_bytes(m.format, stream_segment(m.in), s.column_tiles);
  return s.pieces * stream_piece_bytes(m, s) + s.groups * (2 * stream_sums_bytes(s) + weights);
}

constexpr StreamShape stream_shape(const PackedMatrix& m, const StreamWork& work, std::uint32_t processors) {
  StreamShape s;
  s.segments = k_segments(m.in);
  s.segment_tiles = k_segment_tiles(m.in);
  // Experts differ: room for half as many columns again saves most of them a second pass.
  const std::uint32_t columns = work.matrices > 1 ? work.columns_expected * 3 / 2 : work.columns_expected;
  s.column_tiles = std::min(ceil_div(std::clamp(columns, 1u, std::max(work.columns_max, 1u)), 8), stream_column_tiles_max);
  for (; s.column_tiles > 0; --s.column_tiles) {
    // For a few columns fewer warps carry the stream just as well, and leave room for small kernels before and after.
    const std::uint32_t warps =
        std::min(stream_warps(stream_segment(m.in), s.column_tiles), work.columns_max <= stream_columns_few ? stream_warps_few : 32u);
    const std::uint32_t groups_max = std::min(std::max(warps / s.segments, 1u), stream_groups_max);
    s.input_rows = s.column_tiles == 1 ? std::min(work.columns_max, 8u) : 8 * s.column_tiles;
    s.groups = groups_max;
    s.pieces = stream_pieces_max;
    while (s.groups > 0 && stream_shared_bytes(m, s) > stream_shared_max) {
      if (--s.pieces > 0) continue;
      s.pieces = stream_pieces_max;
      --s.groups;
    }
    if (s.groups > 0 && (s.column_tiles == 1 || s.groups == groups_max)) break;
  }
  const std::uint32_t passes = work.matrices * ceil_div(work.columns_max, std::max(1u, s.column_tiles * 8));
  s.pieces = std::min(s.pieces, passes);
  s.shared_bytes = stream_shared_bytes(m, s);
  s.blocks = std::min(processors, m.row_tiles() * passes);
  return s;
}

// Whether a matrix of these inputs fits at all.
constexpr bool supports_stream(const PackedMatrix& m) { return stream_shape(m, {8, 8, 1}, 1).column_tiles > 0 && m.count <= stream_experts_max; }

// `shape` comes from stream_shape of these weights. cudaErrorInvalidValue: a weight format that is not named, or supports_stream says no.
cudaError_t stream_linear(const StreamArgs<QkvEpilogue>& args, const StreamShape& shape, cudaStream_t stream);       // bf16, fp8
cudaError_t stream_linear(const StreamArgs<ResidualEpilogue>& args, const StreamShape& shape, cudaStream_t stream);  // bf16, fp8
cudaError_t stream_linear(const StreamArgs<SwigluEpilogue>& args, const StreamShape& shape, cudaStream_t stream);    // bf16, mxfp4
cudaError_t stream_linear(const StreamArgs<PlainEpilogue>& args, const StreamShape& shape, cudaStream_t stream);     // bf16, fp8, mxfp4

}  // namespace althing::gpu::cuda
