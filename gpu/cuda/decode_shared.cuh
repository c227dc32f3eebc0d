// What the warps of a block share while it runs a decode step (decode_step.hpp), and how they meet.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/attention_split.cuh"
#include "gpu/cuda/decode_step.hpp"
#include "gpu/cuda/decode_wait.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/norm_math.cuh"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t decode_threads = decode_warps * 32;  // that multiply; the warps that request weights come after them
inline constexpr std::uint32_t request_warps = 4;
inline constexpr std::uint32_t decode_block_threads = decode_threads + request_warps * 32;
static_assert(decode_threads == norm_threads);

struct DecodeShared {
  PhaseShare phases[decode_phases];
  std::uint64_t full[decode_slots_max], empty[decode_slots_max];
  std::uint32_t requested[decode_slots_max];  // units of each slot
  SplitShared attention;
  float parts[norm_threads / 32];
  float router[128];
  float cosine[attention_head_dim / 2], sine[attention_head_dim / 2];  // of the token's position
  std::int32_t kv_slot;                                                // LayerKv::slots of the token, in the layer that is computed
  float weights[decode_choices_max];
  std::uint32_t chosen[decode_choices_max];
  std::uint32_t routed;                      // layers whose experts are known
  std::uint32_t arrived[decode_sum_tiles];   // segments of the row tile that has the place now
  std::uint32_t finished[decode_sum_tiles];  // row tiles of this phase that have had the place, counted by the last one's number + 1
  std::uint32_t next;                        // item of this phase that nobody has taken, where warps take them as they come
  std::uint32_t remaining;                   // row tiles of this phase that the block has yet to add up
  float inverse;
  WaitLimits limits;
  std::int32_t row;  // of the token
  std::uint32_t position;
  std::uint32_t step;
  bool failed;
  bool stop;  // what `failed` was when the warps last met: the same for all of them

  __device__ __forceinline__ bool has_failed() const { return static_cast<const volatile bool&>(failed); }
};

// Dynamic shared memory. Where its parts begin is in the arguments, which cost no registers.
extern __shared__ __align__(1024) std::byte decode_dynamic[];
struct DecodeMemory {
  const DecodeStepArgs& a;
  __device__ __forceinline__ std::byte* ring() const { return decode_dynamic; }                     // (slots, decode_slot_bytes)
  __device__ __forceinline__ std::byte* staged() const { return decode_dynamic + a.parts.staged; }  // (stages, staged_bytes)
  __device__ __forceinline__ std::byte* inputs() const { return decode_dynamic + a.parts.inputs; }  // decode_input_bytes
  __device__ __forceinline__ float* residual() const { return reinterpret_cast<float*>(decode_dynamic + a.parts.residual); }  // (hidden)
  // (decode_sum_tiles, segments, row_tile)
  __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(decode_dynamic + a.parts.sums); }
};

// All threads that multiply.
__device__ __forceinline__ void sync_multipliers() {
  static_assert(decode_threads == 512);
  asm volatile("bar.sync 2,512;" ::: "memory");
}

// In shared memory: what the thread, and whoever it synchronised with, wrote before is seen by who finds the new count there, and the other way
// round.
__device__ __forceinline__ std::uint32_t count_up(std::uint32_t* word) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0,[%1],1;" : "=r"(before) : "r"(shared_address(word)) : "memory");
  return before + 1;
}
__device__ __forceinline__ std::uint32_t count_down(std::uint32_t* word) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0,[%1],-1;" : "=r"(before) : "r"(shared_address(word)) : "memory");
  return before - 1;
}
__device__ __forceinline__ void store_release_shared(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0],%1;" ::"r"(shared_address(word)), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire_shared(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0,[%1];" : "=r"(value) : "r"(shared_address(word)) : "memory");
  return value;
}

// Inputs lie in shared memory as operand B wants them: of 32 inputs, lane 4 g + q has 16 bytes, those of its registers in two k16 steps.
__device__ __forceinline__ std::uint32_t input_offset(std::uint32_t k) { return k / 32 * 64 + k % 8 / 2 * 16 + k % 32 / 8 * 4 + k % 2 * 2; }

}  // namespace althing::gpu::cuda
