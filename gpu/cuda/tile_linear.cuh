// The kernel behind tile_linear.hpp. Persistent blocks, one a multiprocessor, take pieces of 128 rows x 128 columns from a list that every warp
// derives alike from the column counts. One warpgroup gathers the tokens of a piece into a ring of swizzled k tiles in shared memory; two warpgroups
// of 64 rows each load their weights straight from global memory, expand them in registers and multiply.
//
// Invariant: a sum is made of chains of k_segment_tiles k tiles from zero, added in ascending order (numerics.hpp). Columns never meet, so a column
// beyond the last one may hold anything: it is a copy of the last one and is not stored.
//
// Ring: `full` of a place is arrived at by each of the 4 gathering warps, after its copies have landed and are fenced; `empty` by each of the 8
// multiplying warps, after their products of that tile are done. A gathering warp reports copy_lag tiles late; the ring is longer than the lag by
// more than the two tiles a multiplying warp holds, so neither side waits for what the other would do only later.
#pragma once

#include "gpu/cuda/column_blocks.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/tile_linear.hpp"
#include "gpu/cuda/weight_tile.cuh"
#include "gpu/cuda/wgmma.cuh"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t multiplying_warps = 8;
inline constexpr std::uint32_t gathering_warps = 4;
inline constexpr std::uint32_t tile_threads = 32 * (multiplying_warps + gathering_warps);
// Registers a thread; together what the threads have at launch (65536 / tile_threads, rounded down to a multiple of 8, is 168).
inline constexpr std::uint32_t multiplying_registers = 232;
inline constexpr std::uint32_t gathering_registers = 40;
inline constexpr std::uint32_t ring_places = 8;  // a power of two
inline constexpr std::uint32_t ring_place_bytes = tile_columns * k_tile * 2;
inline constexpr int copy_lag = 4;
static_assert(copy_lag + 3 <= static_cast<int>(ring_places));

struct TileShared {
  std::uint64_t full[ring_places];
  std::uint64_t empty[ring_places];
  ColumnBlocks blocks;
};
inline constexpr std::uint32_t tile_alignment = 1024;  // of a swizzled operand
inline constexpr std::size_t tile_shared_bytes = tile_alignment + ring_places * ring_place_bytes + sizeof(TileShared);

// A lane's share of one tile of weights on its way from global memory: nothing may look at it before hold_all(), which comes after a wait.
template <WeightFormat Format>
struct Fragment {
  WeightTile<Format> tile;
  __device__ __forceinline__ void load(const std::byte* from, std::uint32_t lane) {
    if constexpr (Format == WeightFormat::bf16) {
#pragma unroll
      for (int s = 0; s < 4; ++s) tile.step[s] = load_weights_16(from + 512 * s + 16 * lane);
    } else if constexpr (Format == WeightFormat::fp8) {
      tile.half[0] = load_weights_16(from + 16 * lane);
      tile.half[1] = load_weights_16(from + 512 + 16 * lane);
      tile.factor = load_weights_4(from + 1024);
    } else {
      tile.words = load_weights_16(from + 16 * lane);
      tile.exponents = load_weights_4(from + 512 + lane / 4 * 4);
    }
  }
  __device__ __forceinline__ void hold_all() {
    if constexpr (Format == WeightFormat::bf16) {
#pragma unroll
      for (int s = 0; s < 4; ++s) hold_four(tile.step[s]);
    } else if constexpr (Format == WeightFormat::fp8) {
      hold_four(tile.half[0]), hold_four(tile.half[1]), hold(tile.factor);
    } else {
      hold_four(tile.words), hold(tile.exponents);
    }
  }
  __device__ __forceinline__ static void hold_four(uint4& v) { hold(v.x), hold(v.y), hold(v.z), hold(v.w); }

  // Operand A of the tile's k16 steps.
  __device__ __forceinline__ void expand(std::uint32_t (&a)[4][4]) const {
    WeightTile<Format> ready = tile;
    if constexpr (Format == WeightFormat::fp8) ready.factor = __byte_perm(tile.factor, 0, 0x1010);  // into both halves
#pragma unroll
    for (int s = 0; s < 4; ++s) ready.operand(s, a[s]);
  }
};

// Addresses in shared memory.
struct TileRing {
  std::uint32_t places = 0, full = 0, empty = 0;
};

// A warp's way through the list of pieces: block b of n takes pieces b, b + n, ….
struct TileWalk {
  const ColumnBlocks* blocks;
  std::uint32_t row_blocks;
  std::uint32_t pieces;
  std::uint32_t piece;
  std::uint32_t expert = 0;
  TileWork work;

  __device__ __forceinline__ TileWalk(const ColumnBlocks* columns, std::uint32_t experts, std::uint32_t rows)
      : blocks(columns), row_blocks(rows), pieces(columns->first[experts] * rows), piece(blockIdx.x) {
    locate();
  }
  __device__ __forceinline__ bool done() const { return piece >= pieces; }
  __device__ __forceinline__ void next() {
    piece += gridDim.x;
    locate();
  }
  __device__ __forceinline__ void locate() {
    if (done()) return;
    while (piece >= blocks->first[expert + 1] * row_blocks) ++expert;
    const std::uint32_t first = blocks->first[expert];
    work = tile_work(piece - first * row_blocks, row_blocks, blocks->first[expert + 1] - first);
  }
  __device__ __forceinline__ std::uint32_t columns() const { return blocks->counts[expert]; }
};

// A gathering warp. It copies columns [32 part, + 32) of a piece; a lane, chunk lane % 8 of those at lane / 8 + 4 i.
struct TileGather {
  const Columns& columns;
  const __nv_bfloat16* input;
  std::uint32_t row_chunks;  // 16-byte chunks from one input row to the next
  std::uint32_t part;
  std::uint32_t lane;

  // The lane asks for the input row of one column.
  __device__ __forceinline__ std::int32_t find_column(const TileWalk& walk) const {
    if (walk.done()) return 0;
    const std::uint32_t column = walk.work.column_block * tile_columns + 32 * part + lane;
    return column_index(columns, walk.expert, min(column, walk.columns() - 1));
  }

  __device__ __forceinline__ void run(TileWalk walk, std::uint32_t k_tile_count, const TileRing& ring) const {
    const std::uint32_t chunk = lane % 8, first = lane / 8, places = ring.places + 32 * 128 * part;
    // Column n has its chunk c at place c ^ (n % 8) of its 128 bytes, and n % 8 is `first` for even i, `first + 4` for odd i.
    const std::uint32_t even = first * 128 + (chunk ^ first) * 16, odd = (first + 4) * 128 + (chunk ^ (first + 4)) * 16;
    std::uint32_t n = 0;  // k tiles, over all pieces
    std::int32_t index = find_column(walk);
    while (!walk.done()) {
      const std::uint32_t row = static_cast<std::uint32_t>(index) / columns.divisor * row_chunks;
      std::uint32_t offsets[8];  // in chunks, from the input's beginning
#pragma unroll
      for (int i = 0; i < 8; ++i) offsets[i] = __shfl_sync(0xFFFFFFFFu, row, 4 * i + first) + chunk;
      walk.next();
      index = find_column(walk);  // arrives while this piece's tiles are copied
      const uint4* from = reinterpret_cast<const uint4*>(input);
#pragma unroll 1
      for (std::uint32_t k = 0; k < k_tile_count; ++k, ++n, from += 8) {
        const std::uint32_t place = n % ring_places, to = places + place * ring_place_bytes;
        mbarrier_wait(ring.empty + 8 * place, (n / ring_places + 1) % 2);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          copy_async_16(to + even + 512 * i, from + offsets[i]);
          copy_async_16(to + odd + 512 * i, from + offsets[i + 1]);
        }
        copy_async_commit();
        if (n >= copy_lag) {
          copy_async_wait<copy_lag>();
          report(ring.full, n - copy_lag, 1);
        }
      }
    }
    copy_async_wait<0>();
    const std::uint32_t left = min(n, std::uint32_t{copy_lag});
    report(ring.full, n - left, left);
  }

  // The warp's part of tiles [tile, tile + count) has landed.
  __device__ __forceinline__ void report(std::uint32_t full, std::uint32_t tile, std::uint32_t count) const {
    fence_async_proxy();
    __syncwarp();
    if (lane != 0) return;
    for (std::uint32_t i = 0; i < count; ++i) mbarrier_arrive(full + 8 * ((tile + i) % ring_places));
  }
};

// A warp's part of a warpgroup that multiplies: 16 rows of weights, all columns of the piece.
template <WeightFormat Format>
struct TileMultiply {
  Fragment<Format> fragments[2];  // k tiles that are on their way: an even and an odd one
  std::uint32_t a[2][4][4];       // operand A of the k tile that is multiplied and of the next
  float chain[64];
  float total[64];
  const std::byte* weights = nullptr;  // the row tile's first k tile
  std::uint32_t lane = 0;
  TileRing ring;
  std::uint32_t n = 0;  // k tiles, over all pieces

  __device__ __forceinline__ void load(std::uint32_t tile, Fragment<Format>& fragment) const {
    fragment.load(weights + std::uint64_t(tile) * tile_bytes(Format), lane);
  }
  __device__ __forceinline__ void release(std::uint32_t tile) const {
    if (lane == 0) mbarrier_arrive(ring.empty + 8 * (tile % ring_places));
  }

  // Asks for the first weights of a piece.
  __device__ __forceinline__ void begin(const std::byte* row_tile_weights, std::uint32_t tiles) {
    weights = row_tile_weights;
    load(0, fragments[0]);
    load(min(1u, tiles - 1), fragments[1]);
  }

  // K tile `k`, of this parity. Two tiles are in flight but for the end of a segment: while this one is multiplied, the one before it is waited for,
  // its place handed back and its operand registers filled with the tile after this one.
  template <int Parity>
  __device__ __forceinline__ void step(std::uint32_t k, std::uint32_t tiles, bool first_of_segment, bool last_of_segment) {
    const std::uint32_t place = n % ring_places;
    mbarrier_wait(ring.full + 8 * place, n / ring_places % 2);
    const std::uint64_t b = swizzled_operand(ring.places + place * ring_place_bytes);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma_k16(chain, a[Parity][s], b + 2 * s, s > 0 || !first_of_segment);
    wgmma_commit();
    wgmma_wait<1>();
    if (!first_of_segment) release(n - 1);
    fragments[1 - Parity].hold_all();
    fragments[1 - Parity].expand(a[1 - Parity]);
    if (k + 3 < tiles) load(k + 3, fragments[1 - Parity]);
    if (last_of_segment) {
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 64; ++i) hold(chain[i]);
#pragma unroll
      for (int i = 0; i < 64; ++i) total[i] += chain[i];
      release(n);
    }
    ++n;
  }

  __device__ __forceinline__ void run(std::uint32_t tiles, std::uint32_t segment) {
#pragma unroll
    for (int i = 0; i < 64; ++i) chain[i] = 0.0F, total[i] = -0.0F;  // -0 + x is x, bit by bit, also for x = 0
    fragments[0].hold_all();
    fragments[0].expand(a[0]);
    if (tiles > 2) load(2, fragments[0]);
    std::uint32_t in_segment = 0;
    for (std::uint32_t k = 0; k < tiles; k += 2) {
      step<0>(k, tiles, in_segment == 0, in_segment + 1 == segment || k + 1 == tiles);
      in_segment = in_segment + 1 == segment ? 0 : in_segment + 1;
      if (k + 1 == tiles) break;
      step<1>(k + 1, tiles, in_segment == 0, in_segment + 1 == segment || k + 2 == tiles);
      in_segment = in_segment + 1 == segment ? 0 : in_segment + 1;
    }
    wgmma_wait<0>();  // Nothing is left, but the compiler cannot know that the last tile ended a segment.
  }
};

template <class Epilogue>
struct TileKernelArgs {
  TileLinearArgs<Epilogue> args;
  TileLinearShape shape;
};

// A multiplying warp's pieces, each with its epilogue. The weights of the next piece are asked for before the epilogue of this one.
template <WeightFormat Format, class Epilogue>
__device__ __forceinline__ void multiply_pieces(const TileKernelArgs<Epilogue>& parameters, TileWalk walk, std::uint32_t warp, std::uint32_t lane,
                                                const TileRing& ring) {
  const TileLinearArgs<Epilogue>& args = parameters.args;
  const TileLinearShape& shape = parameters.shape;
  TileMultiply<Format> multiply{.lane = lane, .ring = ring};
  const auto begin = [&] {
    // Row tiles beyond the matrix repeat its last one.
    const std::uint32_t tile = min(walk.work.row_block * multiplying_warps + warp, shape.row_tiles - 1);
    const std::uint64_t row_tiles_before = std::uint64_t(walk.expert) * shape.row_tiles + tile;
    multiply.begin(args.weights.data + row_tiles_before * shape.k_tiles * tile_bytes(Format), shape.k_tiles);
  };
  if (!walk.done()) begin();
  while (!walk.done()) {
    multiply.run(shape.k_tiles, shape.segment);
    const TileWalk piece = walk;
    walk.next();
    if (!walk.done()) begin();
    const std::uint32_t tile = piece.work.row_block * multiplying_warps + warp;
    if (tile < shape.row_tiles)
      finish_columns(args.epilogue, args.columns, {piece.expert, piece.work.column_block * tile_columns, piece.columns()}, tile, lane,
                     multiply.total);
  }
}

template <WeightFormat Format, class Epilogue>
__global__ void __launch_bounds__(tile_threads, 1) tile_linear_kernel(const __grid_constant__ TileKernelArgs<Epilogue> parameters) {
  extern __shared__ std::byte shared_memory[];
  const TileLinearArgs<Epilogue>& args = parameters.args;
  const TileLinearShape& shape = parameters.shape;
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const std::uint32_t unaligned = shared_address(shared_memory), ring = (unaligned + tile_alignment - 1) / tile_alignment * tile_alignment;
  TileShared& shared = *reinterpret_cast<TileShared*>(shared_memory + (ring - unaligned) + ring_places * ring_place_bytes);
  const TileRing addresses{ring, shared_address(shared.full), shared_address(shared.empty)};

  if (threadIdx.x < ring_places) {
    mbarrier_init(addresses.full + 8 * threadIdx.x, gathering_warps);
    mbarrier_init(addresses.empty + 8 * threadIdx.x, multiplying_warps);
  }
  wait_for_previous_kernel();
  trigger_next_kernel();
  if (warp == multiplying_warps) count_columns(args.columns, args.weights.count, tile_columns, lane, shared.blocks);
  __syncthreads();

  if (warp >= multiplying_warps) {
    give_registers<gathering_registers>();
    const TileWalk walk(&shared.blocks, args.weights.count, shape.row_blocks);
    TileGather{args.columns, args.input, args.input_stride / 8, warp - multiplying_warps, lane}.run(walk, shape.k_tiles, addresses);
  } else {
    take_registers<multiplying_registers>();
    multiply_pieces<Format>(parameters, TileWalk(&shared.blocks, args.weights.count, shape.row_blocks), warp, lane, addresses);
  }
}

template <WeightFormat Format, class Epilogue>
cudaError_t launch_tile_linear(const TileLinearArgs<Epilogue>& args, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device); error != cudaSuccess) return error;
  const auto kernel = tile_linear_kernel<Format, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, tile_shared_bytes); error != cudaSuccess) return error;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(multiprocessors)), .block = dim3(tile_threads), .shared_bytes = tile_shared_bytes};
  return launch(kernel, shape, stream, TileKernelArgs<Epilogue>{args, tile_linear_shape(args.weights)});
}

// Launches the kernel of the weights' format if it is one of `Formats`.
template <WeightFormat... Formats, class Epilogue>
cudaError_t dispatch_tile_linear(const TileLinearArgs<Epilogue>& args, cudaStream_t stream) {
  const PackedMatrix& weights = args.weights;
  if (weights.data == nullptr || weights.out == 0 || weights.in == 0) return cudaErrorInvalidValue;
  if (weights.count == 0 || weights.count > tile_experts_max) return cudaErrorInvalidValue;
  if (args.input_stride % 8 != 0 || args.input_stride < k_padded(weights.in) || args.columns.divisor == 0) return cudaErrorInvalidValue;
  cudaError_t result = cudaErrorInvalidValue;
  const auto try_format = [&]<WeightFormat Format>() {
    if (weights.format == Format) result = launch_tile_linear<Format>(args, stream);
  };
  (try_format.template operator()<Formats>(), ...);
  return result;
}

}  // namespace althing::gpu::cuda
