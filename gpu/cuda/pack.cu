// pack.hpp. One warp makes one tile: a lane fetches the elements of its own share and writes them as whole 16-byte words. For fp8 a thread block
// makes the tiles of one 128 x 128 block, after finding its largest magnitude; all row orders keep rows inside such a block.
#include <cuda_fp8.h>

#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/pack.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t pack_warps = 8;
constexpr std::uint32_t fp8_block = 128;
static_assert(fp8_block == pack_warps * row_tile && fp8_block == 2 * k_tile);

struct F32 {
  __device__ static float value(const std::byte* data, std::uint64_t index) { return reinterpret_cast<const float*>(data)[index]; }
  __device__ static std::uint32_t bf16_bits(const std::byte* data, std::uint64_t index, std::uint32_t& rounded) {
    const float exact = value(data, index);
    const __nv_bfloat16 nearest = __float2bfloat16_rn(exact);
    if (__float_as_uint(__bfloat162float(nearest)) != __float_as_uint(exact)) ++rounded;
    return __bfloat16_as_ushort(nearest);
  }
};
struct Bf16 {
  __device__ static float value(const std::byte* data, std::uint64_t index) {
    return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(data)[index]} << 16);
  }
  __device__ static std::uint32_t bf16_bits(const std::byte* data, std::uint64_t index, std::uint32_t&) {
    return reinterpret_cast<const std::uint16_t*>(data)[index];
  }
};

// The source rows of a lane in the source's row tile `tile`, as registers a0 and a1 name them.
struct LaneRows {
  std::uint32_t low, high;
  __device__ LaneRows(const PackArgs& args, std::uint32_t tile, std::uint32_t lane)
      : low(source_row(args.order, args.order_block, tile * row_tile + lane / 4)),
        high(source_row(args.order, args.order_block, tile * row_tile + 8 + lane / 4)) {}
};

__device__ std::byte* target_tile(const PackArgs& args, std::uint32_t expert, std::uint32_t tile, std::uint32_t k) {
  return args.data + expert * args.target.matrix_bytes() + tile_offset(args.target, args.first_row / row_tile + tile, k);
}

__device__ void add_to(unsigned long long* counter, std::uint32_t count) {
  count = __reduce_add_sync(0xFFFFFFFFu, count);
  if (threadIdx.x % 32 == 0 && count != 0) atomicAdd(counter, static_cast<unsigned long long>(count));
}

// A warp's tile of the source: k fastest.
struct TilePlace {
  std::uint32_t tile, k, lane;
  bool exists;
  __device__ explicit TilePlace(const PackArgs& args) : lane(threadIdx.x % 32) {
    const std::uint32_t index = blockIdx.x * pack_warps + threadIdx.x / 32, tiles = k_tiles(args.source.in);
    tile = index / tiles;
    k = index % tiles;
    exists = tile < ceil_div(args.source.out, row_tile);
  }
};

template <class Element>
__global__ void pack_bf16_kernel(const __grid_constant__ PackArgs args) {
  wait_for_previous_kernel();
  const TilePlace place(args);
  if (!place.exists) return;
  const Matrix& source = args.source;
  const LaneRows rows(args, place.tile, place.lane);
  const std::uint64_t first = blockIdx.y * args.source_stride;
  std::uint32_t rounded = 0;
  const auto pair = [&](std::uint32_t row, std::uint32_t k) {
    std::uint32_t bits[2] = {};
    for (std::uint32_t i = 0; i < 2; ++i)
      if (row < source.out && k + i < source.in)
        bits[i] = Element::bf16_bits(source.data, first + row * source.row_stride + (k + i) * source.column_stride, rounded);
    return bits[0] | bits[1] << 16;
  };
  std::byte* to = target_tile(args, blockIdx.y, place.tile, place.k);
  for (std::uint32_t s = 0; s < 4; ++s) {
    const std::uint32_t k = place.k * k_tile + 16 * s + place.lane % 4 * 2;
    *reinterpret_cast<uint4*>(to + 512 * s + 16 * place.lane) =
        make_uint4(pair(rows.low, k), pair(rows.high, k), pair(rows.low, k + 8), pair(rows.high, k + 8));
  }
  add_to(&args.report->rounded, rounded);
}

// A code at bits 15 and 8 to 6.
__device__ std::uint32_t spread_code(std::uint32_t code) { return code >> 3 << 15 | (code & 7) << 6; }

// The words of an even step and the odd one after it from their registers, each with its codes at those bits of both halves (packed_matrix.hpp).
__device__ void pack_steps(const std::uint32_t (&even)[4], const std::uint32_t (&odd)[4], std::uint32_t& even_word, std::uint32_t& odd_word) {
  constexpr std::uint32_t from_even = 0x180C180Cu;
  const auto rotate = [](std::uint32_t x, int right) { return __funnelshift_r(x, x, right); };
  const std::uint32_t shared = rotate(even[3], 6) | rotate(odd[3], 12);
  even_word = even[0] | rotate(even[1], 4) | rotate(even[2], 10) | (shared & from_even) >> 2;
  odd_word = odd[0] | rotate(odd[1], 4) | rotate(odd[2], 10) | (shared & ~from_even);
}

__global__ void pack_mxfp4_kernel(const __grid_constant__ PackArgs args) {
  wait_for_previous_kernel();
  const TilePlace place(args);
  if (!place.exists) return;
  const Matrix& source = args.source;
  const LaneRows rows(args, place.tile, place.lane);
  const std::uint64_t first = blockIdx.y * args.source_stride;
  const auto exists = [&](std::uint32_t row, std::uint32_t k) { return row < source.out && k < source.in; };
  // Both codes of a pair are one byte; the even one is its low half.
  const auto codes = [&](std::uint32_t row, std::uint32_t k) {
    if (!exists(row, k)) return 0u;
    const auto byte = static_cast<std::uint32_t>(source.data[16 * (first + row * source.row_stride + k / mxfp4_group) + k % mxfp4_group / 2]);
    return spread_code(byte & 15) | spread_code(byte >> 4) << 16;
  };
  std::uint32_t registers[4][4], words[4], large = 0;
  for (std::uint32_t s = 0; s < 4; ++s) {
    const std::uint32_t k = place.k * k_tile + 16 * s + place.lane % 4 * 2;
    registers[s][0] = codes(rows.low, k), registers[s][1] = codes(rows.high, k);
    registers[s][2] = codes(rows.low, k + 8), registers[s][3] = codes(rows.high, k + 8);
  }
  for (std::uint32_t s = 0; s < 4; s += 2) pack_steps(registers[s], registers[s + 1], words[s], words[s + 1]);
  const auto exponent = [&](std::uint32_t row, std::uint32_t k) {
    if (!exists(row, k)) return 0u;
    const auto scale = static_cast<std::uint32_t>(source.scales[first + row * source.row_stride + k / mxfp4_group]);
    if (scale > 128) ++large;
    return (scale > 128 ? 128 : scale) + 126;
  };
  std::byte* to = target_tile(args, blockIdx.y, place.tile, place.k);
  *reinterpret_cast<uint4*>(to + 16 * place.lane) = make_uint4(words[0], words[1], words[2], words[3]);
  if (place.lane % 4 == 0) {
    const std::uint32_t k = place.k * k_tile;
    const auto both = [&](std::uint32_t at) { return exponent(rows.low, at) << 7 | exponent(rows.high, at) << 23; };
    const std::uint32_t upper = both(k + mxfp4_group);
    *reinterpret_cast<std::uint32_t*>(to + 512 + place.lane) = both(k) | __funnelshift_r(upper, upper, 8);
  }
  add_to(&args.report->large_scale, large);
}

// The power of two for a block whose largest magnitude has these bits, as an exponent.
__device__ int fp8_scale(std::uint32_t largest) {
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const int scale = 8 - exponent - ((largest & 0x7FFFFFu) > 0x600000u ? 1 : 0);  // 448 is 1.75 * 2^8
  return scale < -7 ? -7 : scale > 120 ? 120 : scale;
}

// Grid: (128-blocks of k, of rows, matrices).
template <class Element>
__global__ void pack_fp8_kernel(const __grid_constant__ PackArgs args) {
  __shared__ std::uint32_t largest;
  wait_for_previous_kernel();
  const Matrix& source = args.source;
  const std::uint64_t first = blockIdx.z * args.source_stride;
  const std::uint32_t first_row = blockIdx.y * fp8_block, first_k = blockIdx.x * fp8_block, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto value = [&](std::uint32_t row, std::uint32_t k) {
    return row < source.out && k < source.in ? Element::value(source.data, first + row * source.row_stride + k * source.column_stride) : 0.0F;
  };
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::uint32_t own = 0;
  for (std::uint32_t i = threadIdx.x; i < fp8_block * fp8_block; i += blockDim.x)
    own = max(own, __float_as_uint(value(first_row + i / fp8_block, first_k + i % fp8_block)) & 0x7FFFFFFFu);
  atomicMax(&largest, own);
  __syncthreads();
  const int scale = fp8_scale(largest);
  const float multiplier = __uint_as_float(static_cast<std::uint32_t>(scale + 127) << 23);
  constexpr float limit = 448.0F * 128.0F;
  if (threadIdx.x == 0 && !(__uint_as_float(largest) <= limit)) atomicAdd(&args.report->unfit, 1ull);

  const std::uint32_t tile = blockIdx.y * pack_warps + warp;
  if (tile >= ceil_div(source.out, row_tile)) return;
  const LaneRows rows(args, tile, lane);
  const auto code = [&](std::uint32_t row, std::uint32_t k) {
    return std::uint32_t{__nv_cvt_float_to_fp8(value(row, k) * multiplier, __NV_SATFINITE, __NV_E4M3)};
  };
  const auto pair = [&](std::uint32_t row, std::uint32_t k) { return code(row, k) | code(row, k + 1) << 8; };
  for (std::uint32_t k = 2 * blockIdx.x; k < min(2 * blockIdx.x + 2, k_tiles(source.in)); ++k) {
    std::byte* to = target_tile(args, blockIdx.z, tile, k);
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t words[4];
      for (std::uint32_t s = 0; s < 2; ++s) {
        const std::uint32_t at = k * k_tile + 32 * half + 16 * s + lane % 4 * 2;
        words[2 * s] = pair(rows.low, at) | pair(rows.high, at) << 16;
        words[2 * s + 1] = pair(rows.low, at + 8) | pair(rows.high, at + 8) << 16;
      }
      *reinterpret_cast<uint4*>(to + 512 * half + 16 * lane) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    // The codes' exponents are 120 too small as bf16 (elementwise.cuh).
    const std::uint32_t factor = static_cast<std::uint32_t>(120 - scale + 127) << 7;
    if (lane < 2) *reinterpret_cast<uint4*>(to + 1024 + 16 * lane) = make_uint4(lane == 0 ? factor : 0, 0, 0, 0);
  }
}

bool fits(const PackArgs& args) {
  const Matrix& source = args.source;
  const PackedMatrix& target = args.target;
  if (source.data == nullptr || args.data == nullptr || args.report == nullptr || source.out == 0 || source.in == 0) return false;
  if (source.in != target.in || target.count == 0 || target.count > 65535) return false;
  const std::uint64_t end = std::uint64_t{args.first_row} + source.out;
  if (args.first_row % row_tile != 0 || end > target.out || (end != target.out && end % row_tile != 0)) return false;
  if (args.order == RowOrder::interleaved && source.out % 2 != 0) return false;
  if (args.order == RowOrder::halves) {
    if (args.order_block == 0 || args.order_block % row_tile != 0 || source.out % args.order_block != 0) return false;
    if (target.format == WeightFormat::fp8 && fp8_block % args.order_block != 0) return false;
  }
  return true;
}

}  // namespace

cudaError_t pack_weights(const PackArgs& args, cudaStream_t stream) {
  if (!fits(args)) return cudaErrorInvalidValue;
  const Matrix& source = args.source;
  const std::uint32_t tiles = ceil_div(source.out, row_tile) * k_tiles(source.in);
  LaunchShape shape{.grid = dim3(ceil_div(tiles, pack_warps), args.target.count), .block = dim3(32 * pack_warps)};
  if (args.target.format == WeightFormat::mxfp4) {
    if (source.format != MatrixFormat::mxfp4 || source.scales == nullptr || source.in % mxfp4_group != 0) return cudaErrorInvalidValue;
    return launch(pack_mxfp4_kernel, shape, stream, args);
  }
  if (source.format == MatrixFormat::mxfp4) return cudaErrorInvalidValue;
  const bool f32 = source.format == MatrixFormat::f32;
  if (args.target.format == WeightFormat::bf16) return launch(f32 ? pack_bf16_kernel<F32> : pack_bf16_kernel<Bf16>, shape, stream, args);
  shape.grid = dim3(ceil_div(source.in, fp8_block), ceil_div(source.out, fp8_block), args.target.count);
  return launch(f32 ? pack_fp8_kernel<F32> : pack_fp8_kernel<Bf16>, shape, stream, args);
}

}  // namespace althing::gpu::cuda
