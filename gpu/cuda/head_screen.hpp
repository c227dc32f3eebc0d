// Draws without reading the whole head. Beside the head lies a copy of it in 8-bit integers with a factor a row: half the bytes. From it, and from
// the token's state in 16 bits, follow bounds of every logit and so of every score; only tokens whose upper bound reaches the highest lower bound can
// be drawn, a few of a vocabulary. Their logits are computed from the head itself, the same bits as linear()'s, and the draw is of these: the same
// as of all logits, to the bit.
//
// Bounds. A row w = f c + e (c: codes, f: factor) and a state x = x' + d (x': in 16 bits) give w x = f c x' + f c d + e x. The first is computed
// exactly in integers; by Cauchy and Schwarz the rest is at most |f c| |d| + |e| |x|, and what sums in fp32 lose is below 2^-13 |w| |x|: each of at
// most 32 steps of a segment's chain cuts 17 terms off at 2^-23 of the largest, which is at most the sum of the segment's magnitudes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/sampler.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t screen_rows_max = 8;       // sampled rows of one call
inline constexpr std::uint32_t screen_segments_max = 16;  // k_segments of the head
inline constexpr std::uint32_t screen_blocks_max = 512;
inline constexpr std::size_t screen_scratch_bytes = screen_rows_max * (screen_blocks_max * 16 + 16);

// Device memory, by head_screen_bytes. A row's codes are in the order of operand A of m16n8k32, k within a step as in two tiles of bf16.
struct HeadScreen {
  std::byte* codes = nullptr;  // (row tiles, steps of 32 inputs, 32 lanes, 16); nullptr: there is none
  float* factors = nullptr;    // (row tiles * 16)
  float* errors = nullptr;     // likewise: |e|, infinity where the row is not finite
  float* norms = nullptr;      // likewise: at least |w| and |f c|
};

constexpr std::uint32_t screen_steps(std::uint32_t in) { return 2 * k_tiles(in); }
constexpr std::uint64_t screen_code_bytes(const PackedMatrix& head) { return std::uint64_t{head.row_tiles()} * screen_steps(head.in) * 512; }
constexpr std::uint64_t screen_row_bytes(const PackedMatrix& head) { return std::uint64_t{head.row_tiles()} * row_tile * sizeof(float); }
constexpr bool supports_screen(const PackedMatrix& head) {
  return head.format == WeightFormat::bf16 && head.count == 1 && k_segments(head.in) <= screen_segments_max && k_tiles(head.in) <= 64;
}

// From a packed head. cudaErrorInvalidValue: supports_screen says no.
cudaError_t make_head_screen(const PackedMatrix& head, const HeadScreen& screen, cudaStream_t stream);

struct ScreenedDrawArgs {
  // Rows without penalties, biases, filters and logprobs; masks may be there. `logits` is overwritten with bounds; of scratch see below.
  SamplerArgs sampler;
  PackedMatrix head;
  HeadScreen screen;
  const __nv_bfloat16* input = nullptr;  // (count, input_stride); padding beyond head.in is zero
  std::uint32_t input_stride = 0;
  void* scratch = nullptr;            // screen_scratch_bytes, zeroed once by its owner; not shared by calls that may overlap
  std::uint32_t* rescored = nullptr;  // adds up how many logits were computed from the head; or nullptr
};

// Two launches. cudaErrorInvalidValue: more than screen_rows_max rows, or a head that has no screen.
cudaError_t draw_screened(const ScreenedDrawArgs& args, std::uint32_t processors, cudaStream_t stream);

}  // namespace althing::gpu::cuda
