// Linear layers for many columns (prefill): y = W x by tiles of 128 rows x 128 columns on the tensor cores, for one matrix or for the experts of a
// layer, each with its own columns. A sum's bits depend on its weight row and its input row only (numerics.hpp), never on the columns beside it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t tile_rows = 128;     // weight rows of a block's work
inline constexpr std::uint32_t tile_columns = 128;  // columns of a block's work
inline constexpr std::uint32_t tile_experts_max = 256;
inline constexpr std::uint32_t tile_row_group = 16;  // row blocks that are worked on together, so that both weights and tokens are found in L2

// epilogues.cuh
struct QkvEpilogue;
struct ResidualEpilogue;
struct SwigluEpilogue;
struct PlainEpilogue;

template <class Epilogue>
struct TileLinearArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (rows, input_stride), aligned to 16 bytes; elements from weights.in to k_padded(weights.in) are zero
  std::uint32_t input_stride = 0;        // elements; a multiple of 8, at least k_padded(weights.in)
  Columns columns;                       // of each of weights.count experts
  Epilogue epilogue;
};

// What the host knows of the work; how many columns there are is known on the device only.
struct TileLinearShape {
  std::uint32_t k_tiles = 0;
  std::uint32_t segment = 0;  // k tiles in one chain
  std::uint32_t row_tiles = 0;
  std::uint32_t row_blocks = 0;
};

constexpr TileLinearShape tile_linear_shape(const PackedMatrix& weights) {
  return {k_tiles(weights.in), k_segment_tiles(weights.in), weights.row_tiles(), ceil_div(weights.out, tile_rows)};
}

struct TileWork {
  std::uint32_t row_block = 0;
  std::uint32_t column_block = 0;
};

// The place of piece `index` of a matrix's row_blocks x column_blocks: groups of tile_row_group row blocks; in a group column block by column block.
constexpr TileWork tile_work(std::uint32_t index, std::uint32_t row_blocks, std::uint32_t column_blocks) {
  const std::uint32_t first_row = index / (tile_row_group * column_blocks) * tile_row_group;
  const std::uint32_t inside = index % (tile_row_group * column_blocks);
  const std::uint32_t rows = row_blocks - first_row < tile_row_group ? row_blocks - first_row : tile_row_group;
  return {first_row + inside % rows, inside / rows};
}

// cudaErrorInvalidValue: a weight format that is not named, an empty matrix, more than tile_experts_max experts, or a stride that does not fit.
cudaError_t tile_linear(const TileLinearArgs<QkvEpilogue>& args, cudaStream_t stream);       // bf16, fp8
cudaError_t tile_linear(const TileLinearArgs<ResidualEpilogue>& args, cudaStream_t stream);  // bf16, fp8
cudaError_t tile_linear(const TileLinearArgs<SwigluEpilogue>& args, cudaStream_t stream);    // bf16, mxfp4
cudaError_t tile_linear(const TileLinearArgs<PlainEpilogue>& args, cudaStream_t stream);     // bf16, fp8, mxfp4

}  // namespace althing::gpu::cuda
