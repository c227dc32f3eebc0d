// How the blocks of one kernel wait for each other: monotone counters in device memory, or words that carry a tag beside their value, which saves
// whoever writes a fence and whoever reads a look at a counter. Waits end when a deadline passes or someone aborts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace althing::gpu::cuda {

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
// What the thread, and whoever it synchronised with, wrote before is seen by who sees the count.
__device__ __forceinline__ void add_release(std::uint32_t* word) { asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(word) : "memory"); }

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(now));
  return now;
}

// Of one step. `abort` and `status` are host memory, or nullptr.
struct WaitLimits {
  std::uint64_t end_ns;
  const std::uint32_t* abort;
  std::uint32_t* status;
};

// A value and a tag that no earlier value of the word had, in one store.
__device__ __forceinline__ void store_tagged(unsigned long long* word, std::uint32_t value, std::uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};" ::"l"(word), "r"(value), "r"(tag) : "memory");
}
__device__ __forceinline__ uint2 load_tagged(const unsigned long long* word) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(word) : "memory");
  return v;
}

// Whether a wait that has taken long may go on. A call, so that those who need not wait have no registers taken by it.
static __device__ __noinline__ bool may_wait(const WaitLimits* limits) {
  const bool aborted = limits->abort != nullptr && *static_cast<const volatile std::uint32_t*>(limits->abort) != 0;
  if (!aborted && nanoseconds() < limits->end_ns) return true;
  if (limits->status != nullptr) *static_cast<volatile std::uint32_t*>(limits->status) = aborted ? 2 : 1;
  __threadfence_system();
  return false;
}

// The value of a word that was seen as `seen`, once it has the tag; sets `failed` when that takes too long.
__device__ __forceinline__ std::uint32_t wait_tagged(const unsigned long long* word, uint2 seen, std::uint32_t tag, const WaitLimits& limits,
                                                     bool& failed) {
  for (std::uint32_t tries = 1; seen.y != tag; ++tries) {
    seen = load_tagged(word);
    if (tries % 256 == 0 && !may_wait(&limits)) {
      failed = true;
      break;
    }
  }
  return seen.x;
}

// One thread. Until the word is at least `value`; sets `failed` when that takes too long.
__device__ __forceinline__ void wait_at_least(const std::uint32_t* word, std::uint32_t value, const WaitLimits& limits, bool& failed) {
  for (std::uint32_t tries = 1; load_acquire(word) < value; ++tries)
    if (tries % 256 == 0 && !may_wait(&limits)) {
      failed = true;
      return;
    }
}

}  // namespace althing::gpu::cuda
