// See stream_linear.hpp. Contract: for every column c and packed row r the canonical sum of numerics.hpp goes to Epilogue::store; bits do not depend on the
// shape, on how many columns there are, or on which columns share a pass.
//
// A block has one warp a K segment and walks over row tiles; each warp keeps `Depth` tiles of weights in flight in registers, across row tiles too, beginning before
// the kernel waits for its predecessor. A tile's segment sums meet in shared memory, are added in order, and go to the epilogue.
#pragma once

#include <cuda_runtime.h>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/stream_linear.hpp"

namespace althing::gpu::cuda {

template <class Epilogue>
struct StreamArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (input rows, stride); padding beyond `in` is zero
  std::uint32_t input_stride = 0;
  Columns columns;
  Epilogue epilogue;
  bool weights_are_known = true;    // which matrices are used was decided before the previous kernel began, so weights may be read before it ends
  std::uint32_t segment_tiles = 0;  // of k; from k_segment_tiles
  std::uint32_t row_blocks = 0;
  std::uint32_t input_rows = 0;
};

// One k tile of operand A in registers, as loaded.
template <WeightFormat Format>
struct WeightTile;

template <>
struct WeightTile<WeightFormat::bf16> {
  static constexpr int depth = 2;
  uint4 step[4];
  __device__ __forceinline__ void load(const std::byte* tile, std::uint32_t lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) step[s] = load_weights_16(tile + 512 * s + 16 * lane);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const { a[0] = step[s].x, a[1] = step[s].y, a[2] = step[s].z, a[3] = step[s].w; }
};

template <>
struct WeightTile<WeightFormat::fp8> {
  static constexpr int depth = 3;
  uint4 half[2];
  std::uint32_t factor;
  __device__ __forceinline__ void load(const std::byte* tile, std::uint32_t lane) {
    half[0] = load_weights_16(tile + 16 * lane);
    half[1] = load_weights_16(tile + 512 + 16 * lane);
    factor = load_weights_4(tile + 1024);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s % 2 == 0 ? half[s / 2].x : half[s / 2].z, second = s % 2 == 0 ? half[s / 2].y : half[s / 2].w;
    const std::uint32_t both = __byte_perm(factor, 0, 0x1010);
    a[0] = expand_fp8(first & 0xFFFFu, both), a[1] = expand_fp8(first >> 16, both);
    a[2] = expand_fp8(second & 0xFFFFu, both), a[3] = expand_fp8(second >> 16, both);
  }
};

template <>
struct WeightTile<WeightFormat::mxfp4> {
  static constexpr int depth = 5;
  uint4 words;
  std::uint32_t exponents;
  __device__ __forceinline__ void load(const std::byte* tile, std::uint32_t lane) {
    words = load_weights_16(tile + 16 * lane);
    exponents = load_weights_4(tile + 512 + 4 * (lane / 4));
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t word = s == 0 ? words.x : s == 1 ? words.y : s == 2 ? words.z : words.w;
    expand_mxfp4(word, mxfp4_factor(exponents, s / 2 * 2), mxfp4_factor(exponents, s / 2 * 2 + 1), a);
  }
};

// The z-th matrix that has columns, by ascending number, or -1. All lanes of a warp take part.
__device__ __forceinline__ std::int32_t active_matrix(const std::uint32_t* counts, std::uint32_t matrices, std::uint32_t z) {
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t base = 0; base < matrices; base += 32) {
    const bool used = base + lane < matrices && counts[base + lane] != 0;
    const unsigned active = __ballot_sync(0xFFFFFFFFu, used);
    const std::uint32_t here = __popc(active);
    if (z < here) return static_cast<std::int32_t>(base + __fns(active, 0, static_cast<int>(z) + 1));
    z -= here;
  }
  return -1;
}

// Where a warp stands in its walk over (row tile, k tile of its segments).
struct StreamWalk {
  std::uint32_t tile;     // row tile
  std::uint32_t segment;  // of K
  std::uint32_t k;        // within the segment
};

template <WeightFormat Format, int ColumnTiles, class Epilogue>
__global__ void __launch_bounds__(stream_warps_max * 32, ColumnTiles == 1 ? 3 : ColumnTiles == 2 ? 2 : 1)
    stream_linear_kernel(const __grid_constant__ StreamArgs<Epilogue> args) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ std::int32_t ids[stream_columns_max];  // the column's index
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const PackedMatrix& w = args.weights;
  const std::uint32_t tiles_k = k_tiles(w.in), tiles_row = w.row_tiles(), seg = args.segment_tiles;
  const std::uint32_t segments = ceil_div(tiles_k, seg), turns = ceil_div(segments, warps);
  const std::uint32_t tile_stride = tile_bytes(Format);

  std::int32_t matrix = 0;
  bool waited = false;
  if (!args.weights_are_known) {
    wait_for_previous_kernel();
    trigger_next_kernel();
    waited = true;
  }
  if (args.columns.counts != nullptr) {
    matrix = active_matrix(args.columns.counts, w.count, blockIdx.z);
    if (matrix < 0) return;
  }
  const std::uint32_t total = args.columns.counts != nullptr ? args.columns.counts[matrix] : args.columns.count;
  const std::uint32_t first_column = blockIdx.y * (ColumnTiles * 8);
  if (first_column >= total) return;
  const std::byte* const base = w.data + matrix * w.matrix_bytes();

  // Steps of this warp: for each row tile, `turns` segments of `seg` tiles; steps beyond a short segment or the last one load and add nothing.
  const auto valid = [&](const StreamWalk& at) { return at.tile < tiles_row && at.segment < segments && at.segment * seg + at.k < tiles_k; };
  const auto advance = [&](StreamWalk& at) {
    if (++at.k < seg) return;
    at.k = 0;
    at.segment += warps;
    if (at.segment < turns * warps) return;
    at.segment = warp;
    at.tile += args.row_blocks;
  };
  constexpr int depth = WeightTile<Format>::depth;
  WeightTile<Format> ring[depth];
  StreamWalk ahead{blockIdx.x, warp, 0};
#pragma unroll
  for (int i = 0; i < depth; ++i) {
    if (valid(ahead)) ring[i].load(base + (std::uint64_t(ahead.tile) * tiles_k + ahead.segment * seg + ahead.k) * tile_stride, lane);
    advance(ahead);
  }
  if (!waited) {
    trigger_next_kernel();
    wait_for_previous_kernel();
  }

  // The inputs of this block's columns, each warp its own segments: (columns, segment + 8) so that ldmatrix meets no bank twice.
  const std::uint32_t columns = min(total - first_column, ColumnTiles * 8u);
  if (threadIdx.x < columns) {
    const std::uint32_t c = first_column + threadIdx.x;
    ids[threadIdx.x] = args.columns.index != nullptr ? args.columns.index[std::uint64_t(matrix) * args.columns.capacity + c] : static_cast<std::int32_t>(c);
  }
  __syncthreads();
  const std::uint32_t pitch = turns * (seg * k_tile + 8);  // elements of one column of one warp
  __nv_bfloat16* const inputs = reinterpret_cast<__nv_bfloat16*>(shared) + warp * args.input_rows * pitch;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const std::uint32_t segment = warp + turn * warps;
    if (segment >= segments) break;
    const std::uint32_t first = segment * seg * k_tile, chunks = min(seg, tiles_k - segment * seg) * (k_tile / 8);
    for (std::uint32_t i = lane; i < columns * chunks; i += 32) {
      const std::uint32_t c = i / chunks, chunk = i % chunks;
      const __nv_bfloat16* from = args.input + std::uint64_t(static_cast<std::uint32_t>(ids[c]) / args.columns.divisor) * args.input_stride + first + chunk * 8;
      copy_async_16(shared_address(inputs + c * pitch + turn * (seg * k_tile + 8) + chunk * 8), from);
    }
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();

  // ldmatrix x4 brings k 0-31 of eight columns: matrix m holds k 8m … 8m+7. Columns that do not exist read the first: their sums are dropped.
  std::uint32_t rows[ColumnTiles];
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    const std::uint32_t c = n * 8 + lane % 8;
    rows[n] = shared_address(inputs + (c < columns ? c : 0) * pitch) + lane / 8 * 16;
  }
  float4* const sums = reinterpret_cast<float4*>(shared + std::uint64_t(warps) * args.input_rows * pitch * 2);  // (2, segments' warps, ColumnTiles, 32)

  float chain[ColumnTiles][4], sum[ColumnTiles][4];
  StreamWalk at{blockIdx.x, warp, 0};
  std::uint32_t done = 0;  // row tiles
  while (at.tile < tiles_row) {
#pragma unroll
    for (int i = 0; i < depth; ++i) {
      if (at.tile < tiles_row) {  // the same for all warps of the block
        if (at.k == 0) {
#pragma unroll
          for (int n = 0; n < ColumnTiles; ++n)
#pragma unroll
            for (int r = 0; r < 4; ++r) chain[n][r] = 0.0F;
        }
        if (valid(at)) {
          const std::uint32_t turn = at.segment / warps;
          const std::uint32_t offset = (turn * (seg * k_tile + 8) + at.k * k_tile) * 2;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            std::uint32_t a[2][4];
            ring[i].operand(2 * half, a[0]);
            ring[i].operand(2 * half + 1, a[1]);
#pragma unroll
            for (int n = 0; n < ColumnTiles; ++n) {
              std::uint32_t b[4];
              load_matrix_x4(b, rows[n] + offset + half * 64);
              mma_bf16(chain[n], a[0], b[0], b[1]);
              mma_bf16(chain[n], a[1], b[2], b[3]);
            }
          }
        }
        if (valid(ahead)) ring[i].load(base + (std::uint64_t(ahead.tile) * tiles_k + ahead.segment * seg + ahead.k) * tile_stride, lane);
        advance(ahead);
        if (at.k + 1 == seg) finish_segment<Format, ColumnTiles>(args, at, chain, sum, sums, ids, columns, segments, turns, matrix, done);
        advance(at);
      }
    }
  }
}

// The end of a segment: its chain waits in shared memory until all segments of the row tile are there, then they are added in order. With more segments than
// warps, a turn's sums are added before the next turn's, so the order stays ascending.
template <WeightFormat Format, int ColumnTiles, class Epilogue>
__device__ __forceinline__ void finish_segment(const StreamArgs<Epilogue>& args, const StreamWalk& at, const float (&chain)[ColumnTiles][4],
                                               float (&sum)[ColumnTiles][4], float4* sums, const std::int32_t* ids, std::uint32_t columns,
                                               std::uint32_t segments, std::uint32_t turns, std::int32_t matrix, std::uint32_t& done) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const std::uint32_t turn = at.segment / warps;
  float4* const slot = sums + done % 2 * warps * ColumnTiles * 32;
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) slot[(warp * ColumnTiles + n) * 32 + lane] = make_float4(chain[n][0], chain[n][1], chain[n][2], chain[n][3]);
  __syncthreads();
  // The warps that add take turns, so that no one falls behind in its stream. With several turns the same warps must see all of them.
  const std::uint32_t shift = turns == 1 ? done % warps : 0;
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    if (warp != (n + shift) % warps) continue;
    const std::uint32_t here = min(warps, segments - turn * warps);
    for (std::uint32_t s = 0; s < here; ++s) {
      const float4 part = slot[(s * ColumnTiles + n) * 32 + lane];
      if (turn == 0 && s == 0) {
        sum[n][0] = part.x, sum[n][1] = part.y, sum[n][2] = part.z, sum[n][3] = part.w;
      } else {
        sum[n][0] += part.x, sum[n][1] += part.y, sum[n][2] += part.z, sum[n][3] += part.w;
      }
    }
    if (turn + 1 == turns) {
      const std::uint32_t g = lane / 4, c = n * 8 + lane % 4 * 2;
      if (c < columns) args.epilogue.store(matrix, at.tile, g, ids[c], sum[n][0], sum[n][2]);
      if (c + 1 < columns) args.epilogue.store(matrix, at.tile, g, ids[c + 1], sum[n][1], sum[n][3]);
    }
  }
  ++done;
}

template <WeightFormat Format, int ColumnTiles, class Epilogue>
cudaError_t launch_stream(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  auto* kernel = stream_linear_kernel<Format, ColumnTiles, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, stream_shared_max - 1024); error != cudaSuccess) return error;
  return launch(kernel, {dim3(shape.row_blocks, shape.column_blocks, shape.matrices), dim3(shape.warps * 32), shape.shared_bytes}, stream, args);
}

template <WeightFormat Format, class Epilogue>
cudaError_t stream_linear_as(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  switch (shape.column_tiles) {
    case 1:
      return launch_stream<Format, 1>(args, shape, stream);
    case 2:
      return launch_stream<Format, 2>(args, shape, stream);
    default:
      return launch_stream<Format, 4>(args, shape, stream);
  }
}

}  // namespace althing::gpu::cuda
