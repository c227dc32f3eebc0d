// The numerics class of the CUDA backend, as numbers: in which pieces sums run. Every kernel takes its pieces from here, so that prefill and decode,
// any batch and any chunking give the same bits (ARCHITECTURE.md, "Numerics"). Host and device code; tested without a GPU.
//
// Linear layers: both operands bf16, the input dimension padded with zeros to whole tiles of 64. It is cut into segments of whole tiles; a
// segment is one chain of k16 tensor-core steps from zero, fp32; segment sums are added in ascending order, fp32, from the first segment's sum.
// The chain is the same through mma.sync.m16n8k16 and wgmma k16 with the weights as operand A.
//
// Attention: positions are cut at multiples of kv_segment; each segment, clipped to what the query sees, gives (m, d, o) from zero; segments are
// merged in ascending order; the sink enters once at the end.
#pragma once

#include <cstdint>

namespace althing::gpu::cuda {

inline constexpr std::uint32_t k_tile = 64;       // elements of the input dimension in one tile of packed weights
inline constexpr std::uint32_t row_tile = 16;     // rows of weights in one tile
inline constexpr std::uint32_t kv_segment = 128;  // positions

constexpr std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }
// n / d where inverse is this of d; 1 more than that where n is so large that n d >= 2^31.
constexpr std::uint32_t inverse_of(std::uint32_t d) { return ((1u << 31) + d - 1) / d; }
constexpr std::uint32_t divide(std::uint32_t n, std::uint32_t inverse) { return static_cast<std::uint32_t>((std::uint64_t{2 * n} * inverse) >> 32); }
constexpr std::uint32_t k_tiles(std::uint32_t in) { return ceil_div(in, k_tile); }
constexpr std::uint32_t k_padded(std::uint32_t in) { return k_tiles(in) * k_tile; }

// Tiles in one segment. 2880 (45 tiles) is 9 segments of 5, 4096 (64) is 8 of 8; where no divisor from 4 to 8 exists the last segment is shorter.
constexpr std::uint32_t k_segment_tiles(std::uint32_t in) {
  const std::uint32_t tiles = k_tiles(in);
  if (tiles <= 8) return 1;
  for (std::uint32_t size = 8; size >= 4; --size)
    if (tiles % size == 0) return size;
  return 5;
}
constexpr std::uint32_t k_segments(std::uint32_t in) { return ceil_div(k_tiles(in), k_segment_tiles(in)); }

}  // namespace althing::gpu::cuda
