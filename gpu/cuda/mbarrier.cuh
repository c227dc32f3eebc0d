// Shared-memory barriers that count arrivals and flip a phase: what producers and consumers of a ring wait on. Addresses are those of
// shared_address().
#pragma once

#include <cstdint>

namespace althing::gpu::cuda {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Releases what the thread wrote before.
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
}

// Returns once the phase of this parity is over. On a fresh barrier, parity 1 counts as over.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Makes the thread's ordinary and cp.async writes to shared memory visible to the tensor cores' reads, for whoever synchronises with it afterwards.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace althing::gpu::cuda
