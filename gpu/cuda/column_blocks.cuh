// Which columns a block of a linear layer works on, and what becomes of its sums: shared by the kernels that take columns in blocks. How many columns
// each expert has is known on the device only; every warp of every block derives the same list of work from it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/step_view.hpp"
#include "gpu/cuda/tile_linear.hpp"

namespace althing::gpu::cuda {

// In shared memory.
struct ColumnBlocks {
  std::uint32_t counts[tile_experts_max];     // columns of each expert
  std::uint32_t first[tile_experts_max + 1];  // column blocks before each expert; at the end, of all

  // The expert of a column block that exists. All lanes of a warp take part.
  __device__ __forceinline__ std::uint32_t expert_of(std::uint32_t block, std::uint32_t experts, std::uint32_t lane) const {
    std::uint32_t expert = 0;
    for (std::uint32_t base = 0; base < experts; base += 32) {
      const bool past = base + lane < experts && first[base + lane + 1] <= block;
      expert += __popc(__ballot_sync(0xFFFFFFFFu, past));
    }
    return expert;
  }
};

// What another kernel of the step wrote is read past L1, which may still hold what stood there in an earlier layer.
__device__ __forceinline__ std::int32_t column_index(const Columns& columns, std::uint32_t expert, std::uint32_t column) {
  return columns.index != nullptr ? __ldcg(columns.index + std::uint64_t(expert) * columns.capacity + column) : static_cast<std::int32_t>(column);
}

// By one warp.
__device__ __forceinline__ void count_columns(const Columns& columns, std::uint32_t experts, std::uint32_t block_columns, std::uint32_t lane,
                                              ColumnBlocks& blocks) {
  std::uint32_t before = 0;
  for (std::uint32_t base = 0; base < experts; base += 32) {
    const std::uint32_t expert = base + lane;
    const std::uint32_t count = expert >= experts ? 0 : columns.counts != nullptr ? __ldcg(columns.counts + expert) : columns.count;
    std::uint32_t sum = (count + block_columns - 1) / block_columns;
#pragma unroll
    for (std::uint32_t step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
      if (lane >= step) sum += other;
    }
    if (expert < experts) {
      blocks.counts[expert] = count;
      blocks.first[expert + 1] = before + sum;
    }
    before += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  if (lane == 0) blocks.first[0] = 0;
}

struct ColumnBlock {
  std::uint32_t expert = 0;
  std::uint32_t first = 0;  // column
  std::uint32_t count = 0;  // of the expert's columns, not the block's
};

// Hands a warp's sums of row tile `tile` to the epilogue, a few columns at a time. total[4 i ..]: columns 8 i + 2 q, + 1 of row g, then of row g + 8.
template <int Size, class Epilogue>
__device__ __forceinline__ void finish_columns(const Epilogue& epilogue, const Columns& columns, const ColumnBlock& block, std::uint32_t tile,
                                               std::uint32_t lane, const float (&total)[Size]) {
  constexpr std::uint32_t mine = Size / 2, batch = Epilogue::batch < mine ? Epilogue::batch : mine;  // columns of a lane
  const std::uint32_t first = block.first + lane % 4 * 2;
  const auto rows = epilogue.rows(block.expert, tile, lane / 4);
#pragma unroll
  for (std::uint32_t begin = 0; begin < mine; begin += batch) {
    std::int32_t indices[batch];
    typename Epilogue::Place places[batch];
#pragma unroll
    for (std::uint32_t i = 0; i < batch; ++i)
      indices[i] = column_index(columns, block.expert, min(first + (begin + i) / 2 * 8 + i % 2, block.count - 1));
    epilogue.places(rows, indices, places);
#pragma unroll
    for (std::uint32_t i = 0; i < batch; ++i) {
      const std::uint32_t at = (begin + i) / 2 * 4 + i % 2;
      if (first + (begin + i) / 2 * 8 + i % 2 < block.count) epilogue.finish(rows, places[i], total[at], total[at + 2]);
    }
  }
}

}  // namespace althing::gpu::cuda
