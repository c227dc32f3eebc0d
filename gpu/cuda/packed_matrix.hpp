// Weights as the kernels read them: tiles of 16 rows x 64 inputs, each lane's share of a tile contiguous, so that a warp's load is one run of
// bytes and lands in registers as operand A of m16n8k16 (and of wgmma, warp by warp). Lane = 4 g + q holds rows g and g + 8.
//
//   bf16   2048 B: k16 step s (0..3) at 512 s: lane's 16 B = registers a0..a3 (a0: row g, k 2q,2q+1; a1: row g+8; a2: row g, k 2q+8,2q+9;
//          a3: row g+8)
//   fp8    1056 B: k32 half h (0, 1) at 512 h: lane's 16 B = steps 2h and 2h+1, four 16-bit pairs (a0..a3) each, E4M3, low byte first;
//          at 1024: the block's factor as bf16 (2 B), then padding
//   mxfp4   544 B: lane's 16 B at 16 lane: one 32-bit word a step; at 512 + 4 g: one 32-bit word of exponents, stored as scale + 126 (the format's
//          2^(scale-127), times 2^126, times 2 over bf16's bias)
//
// A register has an even k in its low half and an odd one in its high half. A word of mxfp4 holds most of a step's registers: register 0 as it is
// used, 1 and 2 rotated right by 4 and by 10; what is left of two words, of an even step and the odd one after it, holds their registers 3. A code s
// e e m of a low half (of a high half: with halves exchanged) is at these bits; "even" and "odd" name the word where it is not the register's own:
//   register 0        s 15         e  8          e  7          m  6
//   register 1        s 11         e  4          e  3          m  2
//   register 2        s  5         e 30          e 29          m 28
//   register 3, even  s  9 (odd)   e  0          e  1 (odd)    m  0 (odd)
//   register 3, odd   s  1 (even)  e 26 (even)   e 25 (even)   m 26
// so that one shift and one mask (for the two registers 3 together another shift and select) leave s at bit 15 and e e m at 8 7 6: a bf16 that is the
// value times 2^-126. The exponents of rows g and g + 8 for k < 32 are at bits 7 to 14 and 23 to 30, in place as bf16; those for k >= 32 likewise in
// the word rotated left by 8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/numerics.hpp"

namespace althing::gpu::cuda {

enum class WeightFormat : std::uint8_t { bf16, fp8, mxfp4 };

constexpr std::uint32_t tile_bytes(WeightFormat format) { return format == WeightFormat::bf16 ? 2048u : format == WeightFormat::fp8 ? 1056u : 544u; }

// Which source row stands at a packed row. Rows r and r + 8 of a tile come out of a kernel in one thread, so values that are used together are put
// there.
enum class RowOrder : std::uint8_t {
  natural,
  halves,      // inside each block of `block` rows (a head): j and j + block/2 (the two sides of a rotation)
  interleaved  // 2 i and 2 i + 1 (gate and up)
};

constexpr std::uint32_t source_row(RowOrder order, std::uint32_t block, std::uint32_t packed) {
  const std::uint32_t tile = packed / row_tile, r = packed % row_tile, j = r % 8, high = r / 8;
  if (order == RowOrder::interleaved) return 2 * (tile * 8 + j) + high;
  if (order == RowOrder::halves) {
    const std::uint32_t tiles = block / row_tile;
    return tile / tiles * block + tile % tiles * 8 + j + high * (block / 2);
  }
  return packed;
}

// A matrix, or `count` of them (experts) one after the other. Device memory.
struct PackedMatrix {
  WeightFormat format = WeightFormat::bf16;
  const std::byte* data = nullptr;
  std::uint32_t out = 0;  // rows that mean something; the last tile is padded with zero rows
  std::uint32_t in = 0;
  std::uint32_t count = 1;

  constexpr std::uint32_t row_tiles() const { return ceil_div(out, row_tile); }
  constexpr std::uint64_t matrix_bytes() const { return std::uint64_t{row_tiles()} * k_tiles(in) * tile_bytes(format); }
  constexpr std::uint64_t bytes() const { return matrix_bytes() * count; }
};

}  // namespace althing::gpu::cuda
