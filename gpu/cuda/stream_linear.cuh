// See stream_linear.hpp. Contract: for every column c and packed row r the canonical sum of numerics.hpp goes to Epilogue::finish; bits do not depend
// on the shape, on how many columns there are, or on which columns share a pass.
//
// The work is a list of items: the row tiles of every piece, a piece being one pass over one matrix that has columns. Each block takes an equal run
// of the list, its groups take turns in it. A group has one warp a K segment; each warp keeps the units that come next (weight_stream.cuh) on their
// way into registers or shared memory, across items and pieces, beginning before the kernel waits for its predecessor. An item's segment sums meet in
// shared memory, are added in order by a warp or two, which change from item to item, and go to the epilogue.
#pragma once

#include <cuda_runtime.h>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/stream_linear.hpp"
#include "gpu/cuda/weight_stream.cuh"

namespace althing::gpu::cuda {

// What the kernel would otherwise compute from args.weights again and again.
struct StreamPlan {
  std::uint32_t segment_tiles, tiles_k, row_tiles;
  std::uint32_t row_bytes;     // from one row tile to the next
  std::uint64_t matrix_bytes;  // from one matrix to the next
  std::uint32_t input_rows, pieces;
  std::uint32_t piece_bytes;                                         // of a piece's inputs
  std::uint32_t sums_at;                                             // dynamic shared memory before it: inputs
  std::uint32_t sums_bytes;                                          // of an item's segments
  std::uint32_t weights_at;                                          // before it: the groups' sums, two items each
  std::uint32_t inverse_row_tiles, inverse_blocks, inverse_divisor;  // see divide()
};

struct StreamShared {
  std::uint32_t ends[stream_experts_max];  // passes over an expert and those before it
  std::uint32_t passes;                    // over all
  std::uint32_t matrix[stream_pieces_max];
  std::uint32_t columns[stream_pieces_max];
  std::int32_t ids[stream_pieces_max][stream_column_tiles_max * 8];  // what a column stands for
};

// One warp. Counts are read past L1, which may hold those of an earlier layer.
template <int ColumnTiles>
__device__ __forceinline__ void count_passes(const Columns& columns, std::uint32_t experts, StreamShared& shared) {
  const std::uint32_t lane = threadIdx.x;
  std::uint32_t total = 0;
#pragma unroll
  for (std::uint32_t base = 0; base < stream_experts_max; base += 32)
    if (base + lane < experts) shared.ends[base + lane] = ceil_div(__ldcg(columns.counts + base + lane), ColumnTiles * 8);
#pragma unroll 1
  for (std::uint32_t base = 0; base < experts; base += 32) {
    const std::uint32_t passes = base + lane < experts ? shared.ends[base + lane] : 0;
    std::uint32_t end = total;
#pragma unroll 1
    for (std::uint32_t pass = 0;; ++pass) {
      const unsigned have = __ballot_sync(0xFFFFFFFFu, passes > pass);
      if (have == 0) break;
      end += __popc(have & (0xFFFFFFFFu >> (31 - lane)));
      total += __popc(have);
    }
    shared.ends[base + lane] = end;
  }
  if (lane == 0) shared.passes = total;
}

struct StreamPiece {
  std::uint32_t matrix, first_column;
};

// All lanes of a warp take part. `piece` exists.
template <int ColumnTiles>
__device__ __forceinline__ StreamPiece locate_piece(const Columns& columns, std::uint32_t experts, const StreamShared& shared, std::uint32_t piece) {
  if (columns.only != nullptr) return {static_cast<std::uint32_t>(max(__ldcg(columns.only + piece), 0)), 0};
  if (columns.counts == nullptr) return {0, piece * (ColumnTiles * 8)};
  std::uint32_t matrix = 0, before = 0;
#pragma unroll 1
  for (std::uint32_t base = 0; base < experts; base += 32) {
    const std::uint32_t end = shared.ends[base + threadIdx.x];
    const bool past = end <= piece;
    matrix += __popc(__ballot_sync(0xFFFFFFFFu, past));
    before = past ? end : before;
  }
  return {matrix, (piece - __reduce_max_sync(0xFFFFFFFFu, before)) * (ColumnTiles * 8)};
}

__device__ __forceinline__ void store_shared_16(std::uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// The inputs of one piece's columns, each warp its own segment of every blockDim.z-th column. They are there after the next copy_async_wait and
// __syncthreads. `to`: of the segment's first column.
template <int ColumnTiles, std::uint32_t ColumnBytes, bool Asynchronously, class Epilogue>
__device__ __forceinline__ void load_inputs(const StreamArgs<Epilogue>& args, const StreamPlan& plan, StreamShared& shared, std::uint32_t piece,
                                            std::uint32_t slot, std::uint32_t to, std::uint32_t segment_first, std::uint32_t segment_length) {
  const std::uint32_t lane = threadIdx.x, group = threadIdx.z, groups = blockDim.z;
  const StreamPiece at = locate_piece<ColumnTiles>(args.columns, args.weights.count, shared, piece);
  // The list is read before it is known how much of it means something: both come at once.
  const std::uint32_t own = group + lane * groups, c = at.first_column + own;
  const bool listed = own < ColumnTiles * 8 && c < (args.columns.counts != nullptr ? args.columns.capacity : args.columns.count);
  const bool only = args.columns.only != nullptr;
  const std::uint32_t total = only ? 1 : args.columns.counts != nullptr ? __ldcg(args.columns.counts + at.matrix) : args.columns.count;
  std::int32_t id = static_cast<std::int32_t>(only ? piece : c);
  if (!only && listed && args.columns.index != nullptr) id = args.columns.index[std::uint64_t(at.matrix) * args.columns.capacity + c];
  const std::uint32_t columns = min(total - at.first_column, ColumnTiles * 8u);
  if (threadIdx.y == 0 && own < columns) shared.ids[slot][own] = id;
  if (threadIdx.y == 0 && own == 0) shared.matrix[slot] = at.matrix, shared.columns[slot] = columns;
  const std::uint32_t row = divide(static_cast<std::uint32_t>(id), plan.inverse_divisor);
  const std::uint32_t chunks = segment_length * (k_tile / 8);  // of 16 bytes, at most 64
  const auto from = [&](std::uint32_t i) {
    return reinterpret_cast<const uint4*>(args.input + std::uint64_t(__shfl_sync(0xFFFFFFFFu, row, i)) * args.input_stride + segment_first * k_tile);
  };
  if constexpr (Asynchronously) {
    for (std::uint32_t i = 0, column = group; column < columns; ++i, column += groups) {
      const uint4* const values = from(i);
      for (std::uint32_t j = lane; j < chunks; j += 32) copy_async_16(to + column * ColumnBytes + j * 16, values + j);
    }
    copy_async_commit();
  } else {
    // Two columns at a time through registers: a wait for asynchronous copies would be one for all weights that are on their way, too.
    for (std::uint32_t i = 0, column = group; column < columns; i += 2, column += 2 * groups) {
      uint4 values[2][2];
#pragma unroll
      for (std::uint32_t b = 0; b < 2; ++b)
#pragma unroll
        for (std::uint32_t j = 0; j < 2; ++j) {
          const uint4* const place = from(i + b) + lane + 32 * j;
          if (column + b * groups < columns && lane + 32 * j < chunks) values[b][j] = *place;
        }
#pragma unroll
      for (std::uint32_t b = 0; b < 2; ++b)
#pragma unroll
        for (std::uint32_t j = 0; j < 2; ++j)
          if (column + b * groups < columns && lane + 32 * j < chunks)
            store_shared_16(to + (column + b * groups) * ColumnBytes + (lane + 32 * j) * 16, values[b][j]);
    }
  }
}

__device__ __forceinline__ void sync_group() { asm volatile("bar.sync %0,%1;" ::"r"(1 + threadIdx.z), "r"(blockDim.y * 32) : "memory"); }
__device__ __forceinline__ void store_sums(std::uint32_t address, float low, float high) {
  asm volatile("st.shared.v2.f32 [%0],{%1,%2};" ::"r"(address), "f"(low), "f"(high) : "memory");
}
__device__ __forceinline__ float2 load_sums(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// The end of an item. Segments' chains go to shared memory, where `own` is the lane's place: (segments, ColumnTiles, even and odd columns, 32) low
// and high rows. Then this warp adds and stores parts first, first + blockDim.y, … of (ColumnTiles, even and odd columns), a lane a column and row
// pair. What the epilogue reads is requested before the group meets.
template <int ColumnTiles, class Epilogue>
__device__ __forceinline__ void finish_item(const Epilogue& epilogue, const StreamShared& shared, std::uint32_t slot, std::uint32_t tile,
                                            const float (&chain)[ColumnTiles][4], std::uint32_t own, std::uint32_t first) {
  constexpr std::uint32_t segment_bytes = ColumnTiles * 512;
  const std::uint32_t lane = threadIdx.x, columns = shared.columns[slot];
  typename Epilogue::Rows rows;
  typename Epilogue::Place places[1];
  const auto column_of = [&](std::uint32_t part) { return part / 2 * 8 + lane % 4 * 2 + part % 2; };
  const auto request = [&](std::uint32_t part) {
    const std::int32_t ids[1] = {shared.ids[slot][min(column_of(part), columns - 1)]};
    rows = epilogue.rows(shared.matrix[slot], tile, lane / 4);
    epilogue.places(rows, ids, places);
  };
  // Parts at least one of whose columns exists come first.
  const auto exists = [&](std::uint32_t part) { return part < 2 * ColumnTiles && part / 2 * 8 + part % 2 < columns; };
  if (exists(first)) request(first);
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    store_sums(own + n * 512, chain[n][0], chain[n][2]);
    store_sums(own + n * 512 + 256, chain[n][1], chain[n][3]);
  }
  sync_group();
#pragma unroll 1
  for (std::uint32_t part = first; exists(part); part += blockDim.y) {
    if (part != first) request(part);
    std::uint32_t from = own - threadIdx.y * segment_bytes + part * 256;
    const std::uint32_t end = from + blockDim.y * segment_bytes;
    float2 sum = load_sums(from);
#pragma unroll 4
    while ((from += segment_bytes) != end) {
      const float2 next = load_sums(from);
      sum.x += next.x, sum.y += next.y;
    }
    if (column_of(part) < columns) epilogue.finish(rows, places[0], sum.x, sum.y);
  }
}

// Segment: stream_segment of the inputs.
template <WeightFormat Format, int Segment, int ColumnTiles, class Epilogue>
__global__ void __launch_bounds__(stream_warps(Segment, ColumnTiles) * 32, 1)
    stream_linear_kernel(const __grid_constant__ StreamArgs<Epilogue> args, const __grid_constant__ StreamPlan plan) {
  using Unit = StreamUnit<Format>;
  constexpr int units_max = (Segment == 0 ? 8 : Segment) * Unit::per_tile;
  using Weights = WeightStream<Format, units_max, stream_depth(Format, Segment, ColumnTiles), Segment != 0>;
  extern __shared__ __align__(128) std::byte dynamic[];
  __shared__ StreamShared shared;
  const std::uint32_t lane = threadIdx.x, segments = blockDim.y, groups = blockDim.z, row_tiles = plan.row_tiles;

  if (!args.weights_are_known) {
    wait_for_previous_kernel();
    trigger_next_kernel();
  }
  std::uint32_t items = ceil_div(args.columns.count, ColumnTiles * 8) * row_tiles;
  if (args.columns.only != nullptr) {
    items = args.columns.count * row_tiles;
  } else if (args.columns.counts != nullptr) {
    if (threadIdx.y == 0 && threadIdx.z == 0) count_passes<ColumnTiles>(args.columns, args.weights.count, shared);
    __syncthreads();
    items = shared.passes * row_tiles;
  }
  const std::uint32_t begin = divide(blockIdx.x * items, plan.inverse_blocks);
  const std::uint32_t end = min(divide((blockIdx.x + 1) * items, plan.inverse_blocks), items);
  const std::uint32_t segment_first = threadIdx.y * (Segment == 0 ? plan.segment_tiles : Segment);  // its first k tile
  const std::uint32_t segment_length = Segment == 0 ? min(plan.segment_tiles, plan.tiles_k - segment_first) : Segment;
  const int units = Segment == 0 ? static_cast<int>(segment_length) * Unit::per_tile : units_max;

  // The lane's first byte of the weights of one of a piece's row tiles.
  const auto locate = [&](std::uint32_t piece, std::uint32_t tile) {
    const std::uint32_t matrix = locate_piece<ColumnTiles>(args.columns, args.weights.count, shared, piece).matrix;
    return args.weights.data + matrix * plan.matrix_bytes + std::uint64_t(tile) * plan.row_bytes + segment_first * tile_bytes(Format) + 16 * lane;
  };
  std::uint32_t piece = divide(begin, plan.inverse_row_tiles);
  if (piece * row_tiles > begin) --piece;
  // The group's next item, and where its weights are: requested while the one before is multiplied.
  std::uint32_t item = begin + threadIdx.z;
  const auto locate_item = [&] {
    std::uint32_t of = piece, tile = item - piece * row_tiles;
    for (; tile >= row_tiles; tile -= row_tiles) ++of;
    return locate(of, tile);
  };
  Weights weights(shared_address(dynamic) + plan.weights_at + (threadIdx.z * segments + threadIdx.y) * Weights::shared_bytes, units);
  if (item < end) weights.move_to(locate_item());
  weights.start(item < end);
  if (args.weights_are_known) {
    trigger_next_kernel();
    wait_for_previous_kernel();
  }

  // ldmatrix x4 brings k 0-31 of eight columns: matrix m holds k 8m … 8m+7. Columns without room read the first; sums of columns that do not exist
  // are dropped.
  constexpr std::uint32_t column_bytes = stream_column_bytes(Segment);
  const std::uint32_t inputs = shared_address(dynamic) + threadIdx.y * plan.input_rows * column_bytes;
  std::uint32_t columns_at = 0;
  std::uint32_t sums = 0;            // of the group's two places for an item's sums, the next one
  std::uint32_t adds = threadIdx.y;  // the first part of the sums that this warp adds. It changes so that no warp falls behind in its stream.
  for (std::uint32_t slot = plan.pieces; piece * row_tiles < end; ++piece, ++slot, columns_at += plan.piece_bytes) {
    if (slot == plan.pieces) {
      __syncthreads();  // earlier pieces are done with
      slot = 0;
      for (; slot < plan.pieces && (piece + slot) * row_tiles < end; ++slot)
        load_inputs<ColumnTiles, column_bytes, Weights::shared_bytes == 0>(args, plan, shared, piece + slot, slot, inputs + slot * plan.piece_bytes,
                                                                           segment_first, segment_length);
      slot = 0;
      columns_at = inputs + (lane % 8 < plan.input_rows ? lane % 8 : 0) * column_bytes + lane / 8 * 16;
      if constexpr (Weights::shared_bytes == 0) copy_async_wait<0>();
      __syncthreads();
    }
    const std::uint32_t piece_end = min((piece + 1) * row_tiles, end);
    while (item < piece_end) {
      const std::uint32_t tile = item - piece * row_tiles;
      weights.begin_item();
      item += groups;
      if (item < piece_end) {
        weights.move_by(groups * plan.row_bytes);
      } else if (item < end) {
        weights.move_to(locate_item());
      }
      float chain[ColumnTiles][4] = {};
#pragma unroll
      for (int u = 0; u < units_max; ++u) {
        if (Segment != 0 || u < units) {
          const Unit& unit = weights.take(u);
#pragma unroll
          for (int s = 0; s < Unit::steps; s += 2) {
            std::uint32_t a[2][4];
            unit.operand(s, a[0]);
            unit.operand(s + 1, a[1]);
#pragma unroll
            for (int n = 0; n < ColumnTiles; ++n) {
              std::uint32_t b[4];
              load_matrix_x4(b, columns_at + n * 8 * column_bytes + (u * Unit::steps + s) * 32);
              mma_bf16(chain[n], a[0], b[0], b[1]);
              mma_bf16(chain[n], a[1], b[2], b[3]);
            }
          }
          weights.request(u, item < end);
        }
      }
      const std::uint32_t own =
          shared_address(dynamic) + plan.sums_at + 2 * threadIdx.z * plan.sums_bytes + sums + threadIdx.y * (ColumnTiles * 512) + 8 * threadIdx.x;
      finish_item<ColumnTiles>(args.epilogue, shared, slot, tile, chain, own, adds);
      sums = plan.sums_bytes - sums;
      adds = adds == 0 ? segments - 1 : adds - 1;
    }
  }
}

template <WeightFormat Format, int Segment, int ColumnTiles, class Epilogue>
cudaError_t launch_stream(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  auto* kernel = stream_linear_kernel<Format, Segment, ColumnTiles, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, stream_shared_max); error != cudaSuccess) return error;
  const PackedMatrix& w = args.weights;
  const std::uint32_t piece_bytes = stream_piece_bytes(w, shape);
  const StreamPlan plan{.segment_tiles = shape.segment_tiles,
                        .tiles_k = k_tiles(w.in),
                        .row_tiles = w.row_tiles(),
                        .row_bytes = k_tiles(w.in) * tile_bytes(Format),
                        .matrix_bytes = w.matrix_bytes(),
                        .input_rows = shape.input_rows,
                        .pieces = shape.pieces,
                        .piece_bytes = piece_bytes,
                        .sums_at = shape.pieces * piece_bytes,
                        .sums_bytes = stream_sums_bytes(shape),
                        .weights_at = shape.pieces * piece_bytes + shape.groups * 2 * stream_sums_bytes(shape),
                        .inverse_row_tiles = inverse_of(w.row_tiles()),
                        .inverse_blocks = inverse_of(shape.blocks),
                        .inverse_divisor = inverse_of(args.columns.divisor)};
  return launch(kernel, {dim3(shape.blocks), dim3(32, shape.segments, shape.groups), shape.shared_bytes}, stream, args, plan);
}

template <WeightFormat Format, int Segment, class Epilogue>
cudaError_t launch_stream_columns(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  switch (shape.column_tiles) {
    case 1:
      return launch_stream<Format, Segment, 1>(args, shape, stream);
    case 2:
      return launch_stream<Format, Segment, 2>(args, shape, stream);
    case 3:
      return launch_stream<Format, Segment, 3>(args, shape, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <WeightFormat Format, class Epilogue>
cudaError_t launch_stream_segment(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  switch (stream_segment(args.weights.in)) {
    case 5:
      return launch_stream_columns<Format, 5>(args, shape, stream);
    case 8:
      return launch_stream_columns<Format, 8>(args, shape, stream);
    default:
      return launch_stream_columns<Format, 0>(args, shape, stream);
  }
}

// Formats: those that a layer with this epilogue can have.
template <WeightFormat... Formats, class Epilogue>
cudaError_t dispatch_stream(const StreamArgs<Epilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  if (args.weights.count > stream_experts_max) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  (void)((args.weights.format == Formats ? (error = launch_stream_segment<Formats>(args, shape, stream), true) : false) || ...);
  return error;
}

}  // namespace althing::gpu::cuda
