// From a checkpoint's matrices, lying on the device as they were in the file, to the tiles that kernels read (packed_matrix.hpp). Done once, at load.
// Nothing is lost but where a report says so: f32 is rounded to bf16, and fp8 is a choice. Padding rows and columns are zero.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/ops/matrix.hpp"

namespace althing::gpu::cuda {

// What the loader must know of the values; on the device, added to by every call that is given it.
struct PackReport {
  unsigned long long rounded = 0;      // f32 weights that bf16 does not hold exactly
  unsigned long long large_scale = 0;  // MXFP4 scales above 128: no bf16 factor stands for them, the packed values are wrong
  unsigned long long unfit = 0;        // weights of fp8 blocks that hold a NaN, an infinity or more than 448 * 2^7: the packed values are wrong
};

struct PackArgs {
  Matrix source;                       // device addresses, aligned to the element; rows [first_row, + source.out) of every target matrix
  std::uint64_t source_stride = 0;     // from one matrix (expert) to the next: elements of data; for MXFP4, groups
  PackedMatrix target;                 // the whole: format, out, in, count
  std::byte* data = nullptr;           // target.bytes(), aligned to 32; target.data is not used
  std::uint32_t first_row = 0;         // a multiple of row_tile
  RowOrder order = RowOrder::natural;  // inside the source's rows
  std::uint32_t order_block = 0;       // of RowOrder::halves
  PackReport* report = nullptr;        // on the device
};

// Byte of a matrix at which a tile begins: the tiles of a row tile lie one after the other.
constexpr std::uint64_t tile_offset(const PackedMatrix& matrix, std::uint32_t row_tile_index, std::uint32_t k_tile_index) {
  return (std::uint64_t{row_tile_index} * k_tiles(matrix.in) + k_tile_index) * tile_bytes(matrix.format);
}

// bf16 from bf16 or f32; mxfp4 from MXFP4; fp8 from bf16 or f32: E4M3, rounded to nearest even, with the largest power of two a block of 128 x 128 of
// the source whose product with the block's largest magnitude is at most 448 (and at most 2^120, which zero gets). cudaErrorInvalidValue: another
// pair of formats; rows that do not fit the target or end inside a tile before its last; MXFP4 with an input dimension that is no multiple of 32;
// halves that do not divide the rows, or for fp8 blocks of 128.
cudaError_t pack_weights(const PackArgs& args, cudaStream_t stream);

}  // namespace althing::gpu::cuda
