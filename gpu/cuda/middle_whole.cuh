// The "whole" kernel of middle_linear.hpp: persistent blocks, one a multiprocessor, work off equal runs of row tiles; a sum is made by one warp over
// all inputs. The rings go on from piece to piece, so weights keep coming while an epilogue runs.
//
// Invariant: feed, gather and multiplying warps derive the same pieces in the same order, and take every chunk and every k tile of each piece.
#pragma once

#include "gpu/cuda/middle_linear.cuh"

namespace althing::gpu::cuda {

// Registers a thread, of warps that multiply and of those that bring data; together what the threads have at launch (65536 / threads, rounded down to
// a multiple of 8).
template <int Groups>
struct WholeRegisters;
template <>
struct WholeRegisters<4> {
  static constexpr std::uint32_t multiplying = 112, bringing = 32;
};
template <>
struct WholeRegisters<3> {
  static constexpr std::uint32_t multiplying = 152, bringing = 56;
};

// A warp's way through its block's run.
template <class Layout>
struct WholeWalk {
  const ColumnBlocks* blocks;
  std::uint32_t experts, row_tiles, lane;
  std::uint32_t position, end;
  WholePiece piece;
  ColumnBlock columns;

  __device__ __forceinline__ WholeWalk(const ColumnBlocks* shared, const PackedMatrix& weights, std::uint32_t in_warp)
      : blocks(shared), experts(weights.count), row_tiles(weights.row_tiles()), lane(in_warp) {
    position = whole_run_begin(blocks->first[experts], row_tiles, blockIdx.x, gridDim.x);
    end = whole_run_begin(blocks->first[experts], row_tiles, blockIdx.x + 1, gridDim.x);
    locate();
  }
  __device__ __forceinline__ bool done() const { return position >= end; }
  __device__ __forceinline__ void next() {
    position += piece.tiles;
    locate();
  }
  __device__ __forceinline__ void locate() {
    if (done()) return;
    piece = whole_piece(position, end, row_tiles, Layout::warps);
    const std::uint32_t expert = blocks->expert_of(piece.column_block, experts, lane);
    columns = {expert, (piece.column_block - blocks->first[expert]) * Layout::columns, blocks->counts[expert]};
  }
};

template <class Layout>
__device__ __forceinline__ void feed_whole(const PackedMatrix& weights, WholeWalk<Layout> walk, const Layout& layout) {
  const std::uint32_t count = k_tiles(weights.in), stride = count * tile_bytes(Layout::format);
  WeightFeed<Layout> feed{layout, walk.lane};
  for (; !walk.done(); walk.next()) {
    const std::uint64_t row = std::uint64_t(walk.columns.expert) * walk.row_tiles + walk.piece.row;
    feed.feed(weights.data + row * stride, walk.piece.tiles, stride, count);
  }
}

template <class Layout, class Epilogue>
__device__ __forceinline__ void gather_whole(const MiddleLinearArgs<Epilogue>& args, WholeWalk<Layout> walk, const Layout& layout,
                                             std::uint32_t thread) {
  TokenGather<Layout> gather{
      .layout = layout, .input = reinterpret_cast<const uint4*>(args.input), .row_chunks = args.input_stride / 8, .thread = thread};
  std::uint32_t chosen = 0xFFFFFFFFu;
  for (; !walk.done(); walk.next()) {
    if (walk.piece.column_block != chosen) gather.choose(args.columns, walk.columns);
    chosen = walk.piece.column_block;
    gather.copy(0, k_tiles(args.weights.in));
  }
  gather.finish();
}

// A piece by the product of `Columns` columns.
template <int Columns, class Layout, class Epilogue>
__device__ __forceinline__ void multiply_whole(const MiddleLinearArgs<Epilogue>& args, const WholeWalk<Layout>& walk, std::uint32_t warp,
                                               MiddleMultiply<Layout>& multiply) {
  const std::uint32_t count = k_tiles(args.weights.in), segment = k_segment_tiles(args.weights.in);
  float chain[Columns / 2], total[Columns / 2];
#pragma unroll
  for (int i = 0; i < Columns / 2; ++i) chain[i] = 0.0F, total[i] = -0.0F;  // -0 + x is x, bit by bit, also for x = 0
  multiply.begin(count);
#pragma unroll 1
  for (std::uint32_t k = 0; k < count; k += segment) {
    multiply.segment(min(segment, count - k), chain);
#pragma unroll
    for (int i = 0; i < Columns / 2; ++i) total[i] += chain[i];
  }
  if (warp < walk.piece.tiles) finish_columns(args.epilogue, args.columns, walk.columns, walk.piece.row + warp, multiply.lane, total);
}

template <class Layout, class Epilogue>
__device__ __forceinline__ void multiply_all(const MiddleLinearArgs<Epilogue>& args, WholeWalk<Layout> walk, std::uint32_t warp,
                                             MiddleMultiply<Layout> multiply) {
  for (; !walk.done(); walk.next()) {
    if (warp / 4 * 4 >= walk.piece.tiles) {
      multiply.skip(k_tiles(args.weights.in));
      continue;
    }
    const std::uint32_t columns = walk.columns.count - walk.columns.first;
    if constexpr (Layout::columns == 64) {
      if (columns <= 16) {
        multiply_whole<16>(args, walk, warp, multiply);
      } else if (columns <= 32) {
        multiply_whole<32>(args, walk, warp, multiply);
      } else {
        multiply_whole<64>(args, walk, warp, multiply);
      }
    } else {
      multiply_whole<Layout::columns>(args, walk, warp, multiply);
    }
  }
}

template <int Groups, class Layout, class Epilogue>
__global__ void __launch_bounds__(Layout::threads, 1) whole_linear_kernel(const __grid_constant__ MiddleLinearArgs<Epilogue> args) {
  extern __shared__ std::byte shared_memory[];
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  std::byte* const shared = aligned_shared(shared_memory, Layout::alignment);
  const Layout layout{shared_address(shared)};
  ColumnBlocks& blocks = *reinterpret_cast<ColumnBlocks*>(shared + Layout::ring_bytes + Layout::barriers * 8);
  constexpr std::uint32_t feeding_warp = Layout::warps, gathering_warp = Layout::warps + 1;

  layout.init_barriers();
  if (!args.weights_are_known) wait_for_previous_kernel();
  trigger_next_kernel();
  if (warp == feeding_warp) count_columns(args.columns, args.weights.count, Layout::columns, lane, blocks);
  __syncthreads();
  if (args.weights_are_known && warp != feeding_warp) wait_for_previous_kernel();

  if (warp >= Layout::warps) {
    give_registers<WholeRegisters<Groups>::bringing>();
    if (warp > gathering_warp + 1) return;
    WholeWalk<Layout> walk(&blocks, args.weights, lane);
    if (warp == feeding_warp) {
      feed_whole(args.weights, walk, layout);
    } else {
      gather_whole(args, walk, layout, threadIdx.x - 32 * gathering_warp);
    }
  } else {
    take_registers<WholeRegisters<Groups>::multiplying>();
    const std::byte* weights = shared + Layout::places * Layout::place_bytes + warp * Layout::chunk_bytes;
    multiply_all(args, WholeWalk<Layout>(&blocks, args.weights, lane), warp, MiddleMultiply<Layout>{layout, weights, lane});
  }
}

template <WeightFormat Format, int Groups, int Columns, class Epilogue>
cudaError_t launch_whole(const MiddleLinearArgs<Epilogue>& args, cudaStream_t stream) {
  using Layout = MiddleLayout<Format, Groups, Columns, 6, 3>;
  const auto kernel = whole_linear_kernel<Groups, Layout, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, Layout::shared_bytes); error != cudaSuccess) return error;
  return launch(kernel, {dim3(multiprocessors()), dim3(Layout::threads), Layout::shared_bytes}, stream, args);
}

// Launches the kernel of the weights' format if it is one of `Formats`. Wide: one matrix with more columns than 64 has a kernel of its own.
template <bool Wide, WeightFormat... Formats, class Epilogue>
cudaError_t dispatch_whole(const MiddleLinearArgs<Epilogue>& args, cudaStream_t stream) {
  if (const cudaError_t error = check_middle(args); error != cudaSuccess) return error;
  cudaError_t result = cudaErrorInvalidValue;
  const auto try_format = [&]<WeightFormat Format>() {
    if (args.weights.format != Format) return;
    if constexpr (Wide && Format != WeightFormat::mxfp4) {
      if (args.weights.count == 1 && args.columns_max > 64) {
        result = launch_whole<Format, 3, 128>(args, stream);
        return;
      }
    }
    result = launch_whole<Format, 4, 64>(args, stream);
  };
  (try_format.template operator()<Formats>(), ...);
  return result;
}

}  // namespace althing::gpu::cuda
