// The "split" kernel of middle_linear.hpp: a cluster of blocks has 8 row tiles and one column block, each block some segments of the inputs. A block
// keeps the sums of its segments in registers; at the end, when all blocks of the cluster have left their rings, these become the place of exchange.
//
// Invariant: the result is cut into pieces of 16 rows x 8 columns. Piece i of warp w belongs to the block of rank (i + w) % parts, which adds its
// segment sums in ascending order. The first block's segments are the first ones, so it adds its own before it sends them.
#pragma once

#include "gpu/cuda/cluster.cuh"
#include "gpu/cuda/middle_linear.cuh"

namespace althing::gpu::cuda {

// Registers a thread; together what the threads have at launch (65536 / 384, rounded down to a multiple of 8, is 168).
inline constexpr std::uint32_t split_multiplying_registers = 240, split_bringing_registers = 24;

// Places of the token ring: the more columns, the fewer k tiles of them are on their way, 36 to 48 KiB.
constexpr int split_places(int columns) { return columns == 128 ? 6 : columns == 64 ? 9 : 12; }
template <WeightFormat Format, int Columns>
using SplitLayout = MiddleLayout<Format, 2, Columns, split_places(Columns), split_places(Columns) - 3>;

template <class Epilogue>
struct SplitKernelArgs {
  MiddleLinearArgs<Epilogue> linear;
  std::uint32_t parts;
};

// A block's part of the work.
struct SplitPart {
  std::uint32_t rank, parts;
  std::uint32_t segments, first_segment, last_segment;  // of the matrix; the block's
  std::uint32_t first_tile, k_tile_count;               // along the inputs
  std::uint32_t row, row_tiles;                         // row tiles

  __device__ __forceinline__ SplitPart(const PackedMatrix& weights, std::uint32_t of_parts) : rank(cluster_rank()), parts(of_parts) {
    const std::uint32_t segment = k_segment_tiles(weights.in), count = k_tiles(weights.in);
    segments = ceil_div(count, segment);
    first_segment = split_first_segment(segments, parts, rank);
    last_segment = split_first_segment(segments, parts, rank + 1);
    first_tile = first_segment * segment;
    k_tile_count = min(last_segment * segment, count) - first_tile;
    row = blockIdx.x / parts * split_row_tiles;
    row_tiles = min(split_row_tiles, weights.row_tiles() - row);
  }
};

// Where the sums of a warp's pieces go: (sums, warps, pieces of the warp that a block has, lanes) of 16 bytes.
struct SplitExchange {
  std::uint32_t base;  // shared_address()
  std::uint32_t per_warp;

  __device__ __forceinline__ std::uint32_t address(std::uint32_t sum, std::uint32_t warp, std::uint32_t piece, std::uint32_t lane) const {
    return base + ((sum * split_row_tiles + warp) * per_warp + piece) * 512 + lane * 16;
  }

  // `columns`: those of the block that exist. Pieces without a column are not sent.
  template <int Sums, int Size>
  __device__ __forceinline__ void send(const SplitPart& part, std::uint32_t warp, std::uint32_t lane, std::uint32_t columns,
                                       float (&sums)[Sums][Size]) const {
    const std::uint32_t own = part.last_segment - part.first_segment;
    if (part.rank == 0) {
#pragma unroll
      for (int s = 1; s < Sums; ++s)
        if (static_cast<std::uint32_t>(s) < own) {
#pragma unroll
          for (int i = 0; i < Size; ++i) sums[0][i] += sums[s][i];
        }
    }
    const std::uint32_t count = part.rank == 0 ? 1 : own;
    const std::uint32_t first = part.rank == 0 ? 0 : 1 + part.first_segment - split_first_segment(part.segments, part.parts, 1);
    std::uint32_t owner = warp % part.parts, piece = 0, turn = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < Size / 4; ++i) {
      if (8 * i < columns) {
        const std::uint32_t to = address_in_block(address(first, warp, piece, lane), owner), stride = split_row_tiles * per_warp * 512;
#pragma unroll
        for (std::uint32_t s = 0; s < Sums; ++s)
          if (s < count) store_in_cluster_16(to + s * stride, sums[s][4 * i], sums[s][4 * i + 1], sums[s][4 * i + 2], sums[s][4 * i + 3]);
      }
      owner = owner + 1 == part.parts ? 0 : owner + 1;
      if (++turn == part.parts) turn = 0, ++piece;
    }
  }

  __device__ __forceinline__ float4 receive(std::uint32_t sums, std::uint32_t warp, std::uint32_t piece, std::uint32_t lane) const {
    float4 total = load_at(address(0, warp, piece, lane));
    for (std::uint32_t s = 1; s < sums; ++s) {
      const float4 next = load_at(address(s, warp, piece, lane));
      total.x += next.x, total.y += next.y, total.z += next.z, total.w += next.w;
    }
    return total;
  }
  __device__ __forceinline__ static float4 load_at(std::uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cta.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
  }
};

// A warp's pieces that belong to this block: their epilogue. What it reads is asked for before the cluster meets.
template <int Columns, class Epilogue>
__device__ __forceinline__ void finish_split(const MiddleLinearArgs<Epilogue>& args, const SplitPart& part, const SplitExchange& exchange,
                                             std::uint32_t warp, std::uint32_t lane, const ColumnBlock& block) {
  constexpr std::uint32_t pieces = Columns / 8, most = 2 * Epilogue::batch, batch = most < 2 * pieces ? most : 2 * pieces;  // columns at once
  const std::uint32_t mine = (part.rank + part.parts - warp % part.parts) % part.parts;  // the first piece; the others are `parts` apart
  const std::uint32_t limit = min(block.count, block.first + Columns), sums = split_sums(part.segments, part.parts);
  const auto column = [&](std::uint32_t piece, std::uint32_t odd) { return block.first + 8 * (mine + part.parts * piece) + lane % 4 * 2 + odd; };
  const auto rows = args.epilogue.rows(0, part.row + min(warp, part.row_tiles - 1), lane / 4);
  typename Epilogue::Place places[batch];
  const auto find_places = [&](std::uint32_t piece) {
    std::int32_t indices[batch];
#pragma unroll
    for (std::uint32_t i = 0; i < batch; ++i) indices[i] = column_index(args.columns, 0, min(column(piece + i / 2, i % 2), limit - 1));
    args.epilogue.places(rows, indices, places);
  };
  const bool exists = warp < part.row_tiles;
  if (exists) find_places(0);
  cluster_sync();
  if (!exists) return;
#pragma unroll 1
  for (std::uint32_t piece = 0; block.first + 8 * (mine + part.parts * piece) < limit; piece += batch / 2) {
    if (piece > 0) find_places(piece);
#pragma unroll
    for (std::uint32_t i = 0; i < batch; i += 2) {
      if (block.first + 8 * (mine + part.parts * (piece + i / 2)) >= limit) continue;
      const float4 total = exchange.receive(sums, warp, piece + i / 2, lane);
      if (column(piece + i / 2, 0) < limit) args.epilogue.finish(rows, places[i], total.x, total.z);
      if (column(piece + i / 2, 1) < limit) args.epilogue.finish(rows, places[i + 1], total.y, total.w);
    }
  }
}

template <class Layout, class Epilogue>
__device__ __forceinline__ void multiply_split(const MiddleLinearArgs<Epilogue>& args, const SplitPart& part, std::uint32_t warp,
                                               MiddleMultiply<Layout> multiply, const ColumnBlock& block) {
  const std::uint32_t segment = k_segment_tiles(args.weights.in), own = part.last_segment - part.first_segment;
  float sums[split_sums_max][Layout::columns / 2] = {};
  multiply.begin(part.k_tile_count);
#pragma unroll
  for (std::uint32_t s = 0; s < split_sums_max; ++s)
    if (s < own) multiply.segment(min(segment, part.k_tile_count - s * segment), sums[s]);
  const SplitExchange exchange{multiply.layout.base, ceil_div(Layout::columns / 8, part.parts)};
  cluster_sync();
  exchange.send(part, warp, multiply.lane, min(Layout::columns, block.count - block.first), sums);
  finish_split<Layout::columns>(args, part, exchange, warp, multiply.lane, block);
}

// Grid: (row blocks * parts, column blocks), in clusters of `parts`.
template <class Layout, class Epilogue>
__global__ void __launch_bounds__(Layout::threads, 1) split_linear_kernel(const __grid_constant__ SplitKernelArgs<Epilogue> parameters) {
  extern __shared__ std::byte shared_memory[];
  static_assert(Layout::ring_bytes >= split_exchange_bytes_max && Layout::warps == split_row_tiles);
  const MiddleLinearArgs<Epilogue>& args = parameters.linear;
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  std::byte* const shared = aligned_shared(shared_memory, Layout::alignment);
  const Layout layout{shared_address(shared)};
  constexpr std::uint32_t feeding_warp = Layout::warps, gathering_warp = Layout::warps + 1;

  layout.init_barriers();
  if (!args.weights_are_known) wait_for_previous_kernel();
  trigger_next_kernel();
  const ColumnBlock block{0, blockIdx.y * Layout::columns, args.columns.counts != nullptr ? __ldcg(args.columns.counts) : args.columns.count};
  if (block.first >= block.count) return;  // the whole cluster
  __syncthreads();
  if (args.weights_are_known && warp != feeding_warp) wait_for_previous_kernel();

  const SplitPart part(args.weights, parameters.parts);
  if (warp >= Layout::warps) {
    give_registers<split_bringing_registers>();
    if (warp == feeding_warp) {
      const std::uint32_t stride = k_tiles(args.weights.in) * tile_bytes(Layout::format);
      const std::byte* from = args.weights.data + std::uint64_t(part.row) * stride + part.first_tile * tile_bytes(Layout::format);
      WeightFeed<Layout>{layout, lane}.feed(from, part.row_tiles, stride, part.k_tile_count);
    } else if (warp <= gathering_warp + 1) {
      TokenGather<Layout> gather{.layout = layout,
                                 .input = reinterpret_cast<const uint4*>(args.input),
                                 .row_chunks = args.input_stride / 8,
                                 .thread = threadIdx.x - 32 * gathering_warp};
      gather.choose(args.columns, block);
      gather.copy(part.first_tile, part.k_tile_count);
      gather.finish();
    }
    __syncwarp();
    cluster_sync();
    cluster_sync();
  } else {
    take_registers<split_multiplying_registers>();
    const std::byte* weights = shared + Layout::places * Layout::place_bytes + warp * Layout::chunk_bytes;
    multiply_split(args, part, warp, MiddleMultiply<Layout>{layout, weights, lane}, block);
  }
}

template <WeightFormat Format, int Columns, class Epilogue>
cudaError_t launch_split(const MiddleLinearArgs<Epilogue>& args, const SplitShape& shape, cudaStream_t stream) {
  using Layout = SplitLayout<Format, Columns>;
  const auto kernel = split_linear_kernel<Layout, Epilogue>;
  if (const cudaError_t error = allow_shared_memory(kernel, Layout::shared_bytes); error != cudaSuccess) return error;
  const LaunchShape launch_shape{.grid = dim3(shape.row_blocks * shape.parts, shape.column_blocks),
                                 .block = dim3(Layout::threads),
                                 .shared_bytes = Layout::shared_bytes,
                                 .cluster = shape.parts};
  return launch(kernel, launch_shape, stream, SplitKernelArgs<Epilogue>{args, shape.parts});
}

// Launches the kernel of the weights' format if it is one of `Formats`.
template <WeightFormat... Formats, class Epilogue>
cudaError_t dispatch_split(const MiddleLinearArgs<Epilogue>& args, cudaStream_t stream) {
  if (const cudaError_t error = check_middle(args); error != cudaSuccess) return error;
  const SplitShape shape = split_shape(args.weights, args.columns_max, multiprocessors());
  if (args.weights.count != 1 || shape.parts == 0) return cudaErrorInvalidValue;
  cudaError_t result = cudaErrorInvalidValue;
  const auto try_format = [&]<WeightFormat Format>() {
    if (args.weights.format != Format) return;
    result = shape.columns == 32   ? launch_split<Format, 32>(args, shape, stream)
             : shape.columns == 64 ? launch_split<Format, 64>(args, shape, stream)
                                   : launch_split<Format, 128>(args, shape, stream);
  };
  (try_format.template operator()<Formats>(), ...);
  return result;
}

}  // namespace althing::gpu::cuda
