// The two products of attention as warpgroup instructions: the same chains as score() and add_values() of attention_segment.cuh, for 64 rows at once.
// Rows 16 w … 16 w + 15 are those of warp w of the warpgroup; accumulators stand as in eight-column tiles of m16n8. Operands in shared memory have
// 128-byte rows whose chunks stand as chunk_offset() says, at multiples of 1024 bytes.
#pragma once

#include <cstdint>

#include "gpu/cuda/wgmma.cuh"

namespace althing::gpu::cuda {

// Operand B whose rows are the inner dimension (16 a step, 2048 bytes) and whose 64 columns are contiguous. The stride between blocks of 8 rows is
// given in both places: with 64 columns only one of them has a meaning.
__device__ __forceinline__ std::uint64_t swizzled_transposed_operand(std::uint32_t address) {
  constexpr std::uint64_t swizzle_128 = 1ull << 62, strides = (1024ull >> 4 << 32) | (1024ull >> 4 << 16);
  return swizzle_128 | strides | ((address & 0x3FFFFu) >> 4);
}

#define ALTHING_TILE(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])

// d = a b + (Accumulate ? d : 0). 64 x 128; both operands in shared memory, the inner dimension contiguous.
template <bool Accumulate>
__device__ __forceinline__ void wgmma_scores(float (&d)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate,%66,0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "},%64,%65,accumulate,1,1,0,0;\n"
      "}"
      : ALTHING_TILE(d, 0), ALTHING_TILE(d, 1), ALTHING_TILE(d, 2), ALTHING_TILE(d, 3), ALTHING_TILE(d, 4), ALTHING_TILE(d, 5), ALTHING_TILE(d, 6),
        ALTHING_TILE(d, 7), ALTHING_TILE(d, 8), ALTHING_TILE(d, 9), ALTHING_TILE(d, 10), ALTHING_TILE(d, 11), ALTHING_TILE(d, 12),
        ALTHING_TILE(d, 13), ALTHING_TILE(d, 14), ALTHING_TILE(d, 15)
      : "l"(a), "l"(b), "n"(Accumulate ? 1 : 0));
}

// d = a b + (Accumulate ? d : 0). 64 x 64; a in registers, b of swizzled_transposed_operand.
template <bool Accumulate>
__device__ __forceinline__ void wgmma_values(float (&d)[8][4], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate,%37,0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "},{%32,%33,%34,%35},%36,accumulate,1,1,1;\n"
      "}"
      : ALTHING_TILE(d, 0), ALTHING_TILE(d, 1), ALTHING_TILE(d, 2), ALTHING_TILE(d, 3), ALTHING_TILE(d, 4), ALTHING_TILE(d, 5), ALTHING_TILE(d, 6),
        ALTHING_TILE(d, 7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Accumulate ? 1 : 0));
}

#undef ALTHING_TILE

template <int N>
__device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) hold(d[n][c]);
}

}  // namespace althing::gpu::cuda
