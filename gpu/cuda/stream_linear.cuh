// See stream_linear.hpp. Contract: for every column c and packed row r the canonical sum of numerics.hpp goes to Epilogue::store; bits do not depend on the
// shape, on how many columns there are, or on which columns share a pass.
//
// A block has one warp a K segment and walks over row tiles. Each warp keeps a ring of chunks of its segments' weights in flight, across row tiles too, beginning
// before the kernel waits for its predecessor. A row tile's segment sums meet in shared memory, are added in order, and go to the epilogue.
// The loop is kept small on purpose: unrolled over the ring it outgrew the instruction caches and ran at a quarter of the speed.
#pragma once

#include <cuda_runtime.h>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/stream_linear.hpp"
#include "gpu/cuda/weight_tile.cuh"

namespace althing::gpu::cuda {

template <class Epilogue>
struct StreamArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (input rows, stride); padding beyond `in` is zero
  std::uint32_t input_stride = 0;
  Columns columns;
  Epilogue epilogue;
  bool weights_are_known = true;  // which matrices are used was decided before the previous kernel began, so weights may be read before it ends
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

// One warp's ring of weight chunks and the order in which they come: row tiles, turns of segments, chunks.
template <WeightFormat Format>
struct WeightStream {
  static constexpr std::uint32_t chunk = stream_chunk(Format), slot_bytes = chunk * tile_bytes(Format);

  std::byte* slots;
  std::uint64_t* barriers;
  std::uint32_t slot_count;
  const std::byte* matrix;
  std::uint32_t tiles_row, tiles_k, segment_tiles, warps;
  // What is fetched next.
  std::uint32_t tile, segment, k;
  // What is used next.
  std::uint32_t slot = 0, parity = 0;

  __device__ __forceinline__ std::uint32_t length(std::uint32_t of_segment) const {
    const std::uint32_t begin = of_segment * segment_tiles;
    return begin < tiles_k ? min(segment_tiles, tiles_k - begin) : 0;
  }
  // One lane calls this.
  __device__ __forceinline__ void fetch(std::uint32_t into) {
    if (tile >= tiles_row) return;
    const std::uint32_t begin = segment * segment_tiles, size = min(chunk, length(segment) - k);
    copy_bulk(slots + into * slot_bytes, matrix + (std::uint64_t(tile) * tiles_k + begin + k) * tile_bytes(Format), size * tile_bytes(Format), barriers + into);
    k += size;
    if (k < length(segment)) return;
    k = 0;
    segment += warps;
    if (length(segment) != 0) return;
    segment = threadIdx.x / 32;
    tile += gridDim.x;
  }
  __device__ __forceinline__ const std::byte* wait() {
    wait_copy(barriers + slot, parity);
    return slots + slot * slot_bytes;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) fetch(slot);
    if (++slot == slot_count) slot = 0, parity ^= 1;
  }
};

template <WeightFormat Format, int ColumnTiles, class Epilogue>
__global__ void __launch_bounds__(stream_warps_max * 32, ColumnTiles == 1 ? 3 : ColumnTiles == 2 ? 2 : 1)
    stream_linear_kernel(const __grid_constant__ StreamArgs<Epilogue> args, std::uint32_t seg, std::uint32_t input_rows, std::uint32_t slot_count) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ std::int32_t ids[stream_column_tiles_max * 8];  // what a column stands for
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const PackedMatrix& w = args.weights;
  using Stream = WeightStream<Format>;

  std::int32_t matrix = 0;
  if (!args.weights_are_known) {
    wait_for_previous_kernel();
    trigger_next_kernel();
  }
  if (args.columns.counts != nullptr) {
    matrix = active_matrix(args.columns.counts, w.count, blockIdx.z);
    if (matrix < 0) return;
  }
  const std::uint32_t total = args.columns.counts != nullptr ? args.columns.counts[matrix] : args.columns.count;
  const std::uint32_t first_column = blockIdx.y * (ColumnTiles * 8);
  if (first_column >= total) return;

  const std::uint32_t ring_bytes = slot_count * Stream::slot_bytes;
  const std::uint32_t segments = ceil_div(k_tiles(w.in), seg), turns = ceil_div(segments, warps);
  const std::uint32_t part = seg * k_tile + 8, pitch = turns * part;  // elements of one segment, of one column
  __nv_bfloat16* const all_inputs = reinterpret_cast<__nv_bfloat16*>(shared + warps * ring_bytes);
  float4* const sums = reinterpret_cast<float4*>(all_inputs + warps * input_rows * pitch);  // two of (warps, ColumnTiles, 32)
  const std::uint32_t sums_size = warps * ColumnTiles * 32;
  std::uint64_t* const barriers = reinterpret_cast<std::uint64_t*>(sums + 2 * sums_size);
  Stream stream{shared + warp * ring_bytes, barriers + warp * slot_count, slot_count, w.data + matrix * w.matrix_bytes(), w.row_tiles(), k_tiles(w.in),
                seg,                        warps,                        blockIdx.x, warp,                               0};
  if (lane == 0) {
    for (std::uint32_t i = 0; i < slot_count; ++i) init_copy_barrier(stream.barriers + i);
    fence_barrier_init();
    for (std::uint32_t i = 0; i < slot_count; ++i) stream.fetch(i);
  }
  if (args.weights_are_known) {
    trigger_next_kernel();
    wait_for_previous_kernel();
  }

  // The inputs of this block's columns, each warp its own segments.
  const std::uint32_t columns = min(total - first_column, ColumnTiles * 8u);
  if (threadIdx.x < columns) {
    const std::uint32_t c = first_column + threadIdx.x;
    ids[threadIdx.x] = args.columns.index != nullptr ? args.columns.index[std::uint64_t(matrix) * args.columns.capacity + c] : static_cast<std::int32_t>(c);
  }
  __syncthreads();
  __nv_bfloat16* const inputs = all_inputs + warp * input_rows * pitch;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const std::uint32_t segment = warp + turn * warps, chunks = stream.length(segment) * (k_tile / 8);
    for (std::uint32_t c = 0; c < columns; ++c) {
      const __nv_bfloat16* from = args.input + std::uint64_t(static_cast<std::uint32_t>(ids[c]) / args.columns.divisor) * args.input_stride + segment * seg * k_tile;
      for (std::uint32_t i = lane; i < chunks; i += 32) copy_async_16(shared_address(inputs + c * pitch + turn * part + i * 8), from + i * 8);
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
  std::uint32_t adder = 0;  // the warp that adds the first column tile; others follow. It changes so that no warp falls behind in its stream.
  bool second = false;
  for (std::uint32_t tile = blockIdx.x; tile < stream.tiles_row; tile += gridDim.x) {
    float sum[ColumnTiles][4];
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
      float chain[ColumnTiles][4] = {};
      const std::uint32_t length = stream.length(warp + turn * warps);
      for (std::uint32_t k = 0; k < length; k += Stream::chunk) {
        const std::byte* const weights = stream.wait();
        const std::uint32_t size = min(Stream::chunk, length - k);
#pragma unroll 1
        for (std::uint32_t i = 0; i < size; ++i) {
          WeightTile<Format> a_tile;
          a_tile.load_shared(weights + i * tile_bytes(Format), lane);
          const std::uint32_t offset = (turn * part + (k + i) * k_tile) * 2;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            std::uint32_t a[2][4];
            a_tile.operand(2 * half, a[0]);
            a_tile.operand(2 * half + 1, a[1]);
#pragma unroll
            for (int n = 0; n < ColumnTiles; ++n) {
              std::uint32_t b[4];
              load_matrix_x4(b, rows[n] + offset + half * 64);
              mma_bf16(chain[n], a[0], b[0], b[1]);
              mma_bf16(chain[n], a[1], b[2], b[3]);
            }
          }
        }
        stream.release();
      }
      float4* const slot = sums + (second ? sums_size : 0);
      second = !second;
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) slot[(warp * ColumnTiles + n) * 32 + lane] = make_float4(chain[n][0], chain[n][1], chain[n][2], chain[n][3]);
      __syncthreads();
      const std::uint32_t here = min(warps, segments - turn * warps);
#pragma unroll
      for (int n = 0; n < ColumnTiles; ++n) {
        const std::uint32_t at = adder + n;
        if (warp != (at < warps ? at : at % warps)) continue;
        for (std::uint32_t s = 0; s < here; ++s) {
          const float4 next = slot[(s * ColumnTiles + n) * 32 + lane];
          const bool first = turn == 0 && s == 0;
          sum[n][0] = first ? next.x : sum[n][0] + next.x, sum[n][1] = first ? next.y : sum[n][1] + next.y;
          sum[n][2] = first ? next.z : sum[n][2] + next.z, sum[n][3] = first ? next.w : sum[n][3] + next.w;
        }
        if (turn + 1 < turns) continue;
        const std::uint32_t g = lane / 4, c = n * 8 + lane % 4 * 2;
        if (c < columns) args.epilogue.store(matrix, tile, g, ids[c], sum[n][0], sum[n][2]);
        if (c + 1 < columns) args.epilogue.store(matrix, tile, g, ids[c + 1], sum[n][1], sum[n][3]);
      }
    }
    if (++adder == warps) adder = 0;
  }
}

template <WeightFormat Format, int ColumnTiles, class Epilogue>
cudaError_t launch_stream(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  auto* kernel = stream_linear_kernel<Format, ColumnTiles, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, processor_shared_bytes - 1024); error != cudaSuccess) return error;
  return launch(kernel, {dim3(shape.row_blocks, shape.column_blocks, shape.matrices), dim3(shape.warps * 32), shape.shared_bytes}, stream, args,
                shape.segment_tiles, shape.input_rows, shape.slots);
}

template <WeightFormat Format, class Epilogue>
cudaError_t stream_linear_as(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  switch (shape.column_tiles) {
    case 1:
      return launch_stream<Format, 1>(args, shape, stream);
    case 2:
      return launch_stream<Format, 2>(args, shape, stream);
    case 3:
      return launch_stream<Format, 3>(args, shape, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace althing::gpu::cuda
