// The blocks of a cluster: where they meet, and how one writes into the shared memory of another.
#pragma once

#include <cstdint>

namespace althing::gpu::cuda {

// The same meeting in two halves, for who has something to do in between; all threads take part in both.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// All threads of all blocks of the cluster meet. What they wrote before, to their own or to each other's shared memory, all see afterwards.
__device__ __forceinline__ void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The place of another block's shared memory that corresponds to `address` of this block's (shared_address()).
__device__ __forceinline__ std::uint32_t address_in_block(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void store_in_cluster_16(std::uint32_t address, float x, float y, float z, float w) {
  asm volatile("st.shared::cluster.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

}  // namespace althing::gpu::cuda
