// Shared-memory barriers that count arrivals and flip a phase: what producers and consumers of a ring wait on. Addresses are those of
// shared_address().
#pragma once

#include <cstddef>
#include <cstdint>

namespace althing::gpu::cuda {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the inits, by the thread that made them: bulk copies may count on the barriers.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

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

// An arrival that also announces bytes: the phase ends when they have come, too.
__device__ __forceinline__ void mbarrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Announced bytes from global to shared memory. Bytes and addresses are multiples of 16.
__device__ __forceinline__ void copy_expected(std::uint32_t shared, const std::byte* global, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(shared), "l"(global), "r"(bytes),
               "r"(barrier)
               : "memory");
}

// The same for what is read once: it is the first to leave L2 again.
__device__ __forceinline__ std::uint64_t policy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_expected(std::uint32_t shared, const std::byte* global, std::uint32_t bytes, std::uint32_t barrier,
                                              std::uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}
// To L2 only. Bytes and address are multiples of 16.
__device__ __forceinline__ void prefetch_bulk(const std::byte* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(global), "r"(bytes) : "memory");
}

// Whether the phase of this parity is over, perhaps after a short wait.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t over;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done,[%1],%2;\n"
      "selp.u32 %0,1,0,done;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}

// Makes the thread's ordinary and cp.async writes to shared memory visible to the tensor cores' reads, for whoever synchronises with it afterwards.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace althing::gpu::cuda
