// The pieces that both kernels of middle_linear.hpp are made of: two rings in shared memory, who fills them, and the product in between.
//
// A block has `Groups` warpgroups that multiply (a warp has one row tile, operand A; all share the tokens, operand B) and one that brings data: a
// warp that feeds weights, two that gather tokens. Two rings, because the two come from different places: weights from memory, a microsecond away, in
// slots of one chunk of every row tile; tokens from L2 in places of one k tile, swizzled. `full` of a slot counts bytes, `full` of a place both
// gathering warps; `empty` of either counts all multiplying warps. A gathering warp reports its copies Lag tiles late, when they have landed; a
// multiplying warp holds two places; so Places >= Lag + 3 lets both sides go on.
//
// What was counted before writing (H200: 132 multiprocessors, 4.3 TB/s from memory = 19 B a clock and multiprocessor, L2 to all of them about 7 TB/s
// = 30 B, shared memory 128 B, 4 issue slots), in clocks of one multiprocessor at 1.75 GHz; N columns:
//                                    weights   L2 (weights + tokens)     shared memory         tensor cores      issue
//   q k v, 120 blocks 128 x 15 tiles
//     N = 32                             12 k      307 KB = 10 k         0.7 MB = 6 k                2 k          1 k
//     N = 128                            12 k      492 KB = 16 k         1.5 MB = 12 k               8 k          3 k
//   head, runs of 95 row tiles,
//     N = 64, 16 row tiles a piece      471 k       11 MB = 370 k         25 MB = 200 k            137 k         60 k
//     N = 128, 12 row tiles a piece     471 k     14.7 MB = 490 k         41 MB = 320 k            274 k         60 k
//   gate and up of 32 experts, 16 row
//   tiles a piece, N = 16               115 k      2.6 MB = 88 k           6 MB = 50 k           60-90 k        110 k (mxfp4: 68 of 110 slots a tile)
// So q k v must not read its tokens in every block (a block of 16-row tiles over all inputs would read 0.7 MB of them at N = 128), the head needs
// more than 128 rows a piece, and mxfp4 weights need 16 warps and no work besides their expansion.
#pragma once

#include "gpu/cuda/column_blocks.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/middle_linear.hpp"
#include "gpu/cuda/weight_tile.cuh"
#include "gpu/cuda/wgmma.cuh"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t middle_gathering_warps = 2;

// Where everything lies in a block's shared memory: places, slots, barriers, column blocks. Addresses are those of shared_address().
template <WeightFormat Format, int Groups, int Columns, int Places, int Lag>
struct MiddleLayout {
  static_assert(Places >= Lag + 3);
  static constexpr WeightFormat format = Format;
  static constexpr std::uint32_t columns = Columns, places = Places;
  static constexpr int lag = Lag;
  static constexpr std::uint32_t warps = 4 * Groups;            // that multiply, each a row tile
  static constexpr std::uint32_t threads = 32 * warps + 128;    // and those that bring data
  static constexpr std::uint32_t chunk = middle_chunk(Format);  // k tiles of a slot
  static constexpr std::uint32_t chunk_bytes = chunk * tile_bytes(Format);
  static constexpr std::uint32_t slot_bytes = warps * chunk_bytes, place_bytes = Columns * k_tile * 2;
  static constexpr std::uint32_t alignment = 1024;  // of a swizzled operand
  static constexpr std::uint32_t control_bytes = 3072;
  static constexpr std::uint32_t fitting_slots = (middle_shared_bytes - alignment - control_bytes - places * place_bytes) / slot_bytes;
  static constexpr std::uint32_t slots = fitting_slots < 12 ? fitting_slots : 12;
  static_assert(slots >= 3);
  static constexpr std::uint32_t ring_bytes = places * place_bytes + slots * slot_bytes;
  static constexpr std::uint32_t barriers = 2 * (slots + places);
  static_assert(barriers * 8 + sizeof(ColumnBlocks) <= control_bytes);
  static constexpr std::uint32_t shared_bytes = alignment + ring_bytes + control_bytes;

  std::uint32_t base;  // of the places

  __device__ __forceinline__ std::uint32_t place(std::uint32_t i) const { return base + i * place_bytes; }
  __device__ __forceinline__ std::uint32_t slot(std::uint32_t i) const { return base + places * place_bytes + i * slot_bytes; }
  __device__ __forceinline__ std::uint32_t slot_full(std::uint32_t i) const { return base + ring_bytes + 8 * i; }
  __device__ __forceinline__ std::uint32_t slot_empty(std::uint32_t i) const { return slot_full(slots + i); }
  __device__ __forceinline__ std::uint32_t place_full(std::uint32_t i) const { return slot_full(2 * slots + i); }
  __device__ __forceinline__ std::uint32_t place_empty(std::uint32_t i) const { return slot_full(2 * slots + places + i); }

  // By all threads; a __syncthreads() has to follow.
  __device__ __forceinline__ void init_barriers() const {
    const std::uint32_t i = threadIdx.x;
    if (i >= barriers) return;
    mbarrier_init(slot_full(i), i < slots ? 1 : i < 2 * slots ? warps : i < 2 * slots + places ? middle_gathering_warps : warps);
    fence_barrier_init();
  }
};

// The first aligned byte of dynamic shared memory, where a layout begins.
__device__ __forceinline__ std::byte* aligned_shared(std::byte* memory, std::uint32_t alignment) {
  return memory + (alignment - shared_address(memory) % alignment) % alignment;
}

// The order of a ring's slots, and the phase of each time round.
template <std::uint32_t Size>
struct RingPosition {
  std::uint32_t at = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++at == Size) at = 0, parity ^= 1;
  }
};

// The warp that feeds weights.
template <class Layout>
struct WeightFeed {
  Layout layout;
  std::uint32_t lane;
  RingPosition<Layout::slots> slot;

  // `count` k tiles of each of `tiles` row tiles, which are `stride` bytes apart.
  __device__ __forceinline__ void feed(const std::byte* from, std::uint32_t tiles, std::uint32_t stride, std::uint32_t count) {
    const std::byte* const mine = from + std::uint64_t(lane) * stride;
    for (std::uint32_t k = 0; k < count; k += Layout::chunk) {
      const std::uint32_t bytes = min(Layout::chunk, count - k) * tile_bytes(Layout::format), full = layout.slot_full(slot.at);
      mbarrier_wait(layout.slot_empty(slot.at), slot.parity ^ 1);
      if (lane == 0) mbarrier_expect(full, tiles * bytes);
      __syncwarp();
      if (lane < tiles) copy_expected(layout.slot(slot.at) + lane * Layout::chunk_bytes, mine + k * tile_bytes(Layout::format), bytes, full);
      slot.next();
    }
  }
};

// A warp that gathers tokens. Thread t of both warps copies 16-byte chunk t % 8 of columns t / 8, t / 8 + 8, …. Columns beyond the last are not
// copied: columns never meet, so whatever lies in their places only makes sums that nobody stores.
template <class Layout>
struct TokenGather {
  static constexpr std::uint32_t columns_each = Layout::columns / 8;

  Layout layout;
  const uint4* input;
  std::uint32_t row_chunks;             // 16-byte chunks from one input row to the next
  std::uint32_t thread;                 // of both warps
  std::uint32_t offsets[columns_each];  // in chunks, from the input's beginning
  std::uint32_t existing = 0;           // of the thread's columns
  std::uint32_t unreported = 0;
  RingPosition<Layout::places> place, reported;

  __device__ __forceinline__ void choose(const Columns& columns, const ColumnBlock& block) {
    const std::uint32_t first = block.first + thread / 8;
    existing = first < block.count ? min(columns_each, (block.count - first + 7) / 8) : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < columns_each; ++i) {
      const std::int32_t index = column_index(columns, block.expert, min(first + 8 * i, block.count - 1));
      offsets[i] = static_cast<std::uint32_t>(index) / columns.divisor * row_chunks + thread % 8;
    }
  }

  // k tiles [begin, begin + count) of the chosen columns.
  __device__ __forceinline__ void copy(std::uint32_t begin, std::uint32_t count) {
    // Column n has its chunk c at place c ^ (n % 8) of its 128 bytes; n % 8 is thread / 8 for all columns of a thread.
    const std::uint32_t inside = thread / 8 * 128 + (thread % 8 ^ thread / 8) * 16;
    const uint4* from = input + begin * 8;
#pragma unroll 1
    for (std::uint32_t k = 0; k < count; ++k, from += 8) {
      mbarrier_wait(layout.place_empty(place.at), place.parity ^ 1);
      const std::uint32_t to = layout.place(place.at) + inside;
#pragma unroll
      for (std::uint32_t i = 0; i < columns_each; ++i)
        if (i < existing) copy_async_16(to + 1024 * i, from + offsets[i]);
      copy_async_commit();
      place.next();
      if (unreported < Layout::lag) {
        ++unreported;
        continue;
      }
      copy_async_wait<Layout::lag>();
      report();
    }
  }
  __device__ __forceinline__ void finish() {
    copy_async_wait<0>();
    for (; unreported > 0; --unreported) report();
  }

  // The oldest tile that was not reported has landed.
  __device__ __forceinline__ void report() {
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(layout.place_full(reported.at));
    reported.next();
  }
};

// One half of a k tile as operand A of its two k16 steps.
template <WeightFormat Format>
struct HalfTiles {
  WeightTile<Format> tile;
  __device__ __forceinline__ HalfTiles(const std::byte* address, std::uint32_t lane) { tile.load_shared(address, lane); }
  __device__ __forceinline__ void half(int h, std::uint32_t (&a)[2][4]) const {
    tile.operand(2 * h, a[0]);
    tile.operand(2 * h + 1, a[1]);
  }
};
// Nothing to expand: each half is loaded when it is needed, to save registers.
template <>
struct HalfTiles<WeightFormat::bf16> {
  const std::byte* mine;
  __device__ __forceinline__ HalfTiles(const std::byte* address, std::uint32_t lane) : mine(address + 16 * lane) {}
  __device__ __forceinline__ void half(int h, std::uint32_t (&a)[2][4]) const {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 v = load_shared_16(mine + 512 * (2 * h + s));
      a[s][0] = v.x, a[s][1] = v.y, a[s][2] = v.z, a[s][3] = v.w;
    }
  }
};

// A warp that multiplies.
template <class Layout>
struct MiddleMultiply {
  Layout layout;
  const std::byte* weights;  // the warp's row tile in slot 0
  std::uint32_t lane;
  std::uint32_t run = 0;    // k tiles that follow the open chunk before the row tile ends
  std::uint32_t chunk = 0;  // k tiles left in the open chunk
  const std::byte* tile = nullptr;
  RingPosition<Layout::slots> slot;
  RingPosition<Layout::places> place;

  // A row tile of so many k tiles begins.
  __device__ __forceinline__ void begin(std::uint32_t k_tile_count) { run = k_tile_count; }

  // Waits for the weights of the next k tile.
  __device__ __forceinline__ void open_weights() {
    if (chunk > 0) return;
    chunk = min(Layout::chunk, run);
    run -= chunk;
    mbarrier_wait(layout.slot_full(slot.at), slot.parity);
    tile = weights + slot.at * Layout::slot_bytes;
  }
  // For its tokens.
  __device__ __forceinline__ void open_tokens() const { mbarrier_wait(layout.place_full(place.at), place.parity); }
  // Its weights are in registers.
  __device__ __forceinline__ void close_weights() {
    tile += tile_bytes(Layout::format);
    if (--chunk > 0) return;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(layout.slot_empty(slot.at));
    slot.next();
  }
  // The tokens of a k tile are not needed any more.
  __device__ __forceinline__ void close_tokens(std::uint32_t at) const {
    if (lane == 0) mbarrier_arrive(layout.place_empty(at));
  }

  // One chain from zero over the next `count` k tiles, count > 0. Half a tile is multiplied while the next half is expanded.
  template <int Size>
  __device__ __forceinline__ void segment(std::uint32_t count, float (&chain)[Size]) {
    const std::uint64_t first_place = swizzled_operand(layout.base);
    std::uint32_t before = 0;  // the place before this
#pragma unroll 1
    for (std::uint32_t i = 0; i < count; ++i) {
      open_weights();
      const HalfTiles<Layout::format> halves(tile, lane);
      std::uint32_t first[2][4], second[2][4];
      halves.half(0, first);
      open_tokens();
      const std::uint64_t b = first_place + place.at * (Layout::place_bytes / 16);
      wgmma_fence();
      wgmma_k16(chain, first[0], b, i > 0);
      wgmma_k16(chain, first[1], b + 2, true);
      wgmma_commit();
      wgmma_wait<1>();  // the tile before is done
      if (i > 0) close_tokens(before);
      halves.half(1, second);
      wgmma_fence();
      wgmma_k16(chain, second[0], b + 4, true);
      wgmma_k16(chain, second[1], b + 6, true);
      wgmma_commit();
      close_weights();
      wgmma_wait<1>();  // this tile's first half is done
      before = place.at;
      place.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < Size; ++i) hold(chain[i]);
    close_tokens(before);
  }

  // A row tile of so many k tiles that this warpgroup has no part in.
  __device__ __forceinline__ void skip(std::uint32_t k_tile_count) {
    begin(k_tile_count);
#pragma unroll 1
    for (std::uint32_t i = 0; i < k_tile_count; ++i) {
      open_weights();
      open_tokens();
      close_weights();
      close_tokens(place.at);
      place.next();
    }
  }
};

// Which arguments a kernel cannot take, for whichever format.
template <class Epilogue>
cudaError_t check_middle(const MiddleLinearArgs<Epilogue>& args) {
  const PackedMatrix& weights = args.weights;
  if (weights.data == nullptr || weights.out == 0 || weights.in == 0) return cudaErrorInvalidValue;
  if (weights.count == 0 || weights.count > tile_experts_max) return cudaErrorInvalidValue;
  if (args.input_stride % 8 != 0 || args.input_stride < k_padded(weights.in) || args.columns.divisor == 0) return cudaErrorInvalidValue;
  return cudaSuccess;
}

// Of the current device, or 0.
inline std::uint32_t multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  return static_cast<std::uint32_t>(count);
}

}  // namespace althing::gpu::cuda
