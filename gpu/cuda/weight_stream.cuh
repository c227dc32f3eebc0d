// The weights of one warp of the decode linear layers on their way from memory, in units of a tile (mxfp4) or half a tile (the others), requested
// many units ahead of their use. MXFP4 takes so many instructions that its units go straight to registers. The others, whose units are larger and
// whose use is short, go through shared memory, each lane for itself: the compiler would not leave their loads to registers where they are written.
//
// A warp uses `units` units of one item, then those of the next. Pointers are to the lane's first byte, 16 lane further than the warp's first.
#pragma once

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

__device__ __forceinline__ void stream_to_shared_16(std::uint32_t shared, const std::byte* global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0],[%1],16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ uint4 read_shared_16(std::uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t read_shared_4(std::uint32_t shared) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(shared) : "memory");
  return v;
}
// Leave the registers alone unless `exists`, without a branch.
__device__ __forceinline__ void load_weights_16_if(uint4& v, const std::byte* address, bool exists) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%5,0;\n@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3},[%4];\n}\n"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(address), "r"(static_cast<std::uint32_t>(exists)));
}
__device__ __forceinline__ void load_weights_4_if(std::uint32_t& v, const std::byte* address, bool exists) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.L1::no_allocate.u32 %0,[%1];\n}\n"
               : "+r"(v)
               : "l"(address), "r"(static_cast<std::uint32_t>(exists)));
}

// A lane's part of a unit.
template <WeightFormat Format>
struct StreamUnit;

template <>
struct StreamUnit<WeightFormat::bf16> {
  static constexpr int per_tile = 2, steps = 2;  // steps: of k16, in one unit
  uint4 step[2];
  // Between memory and the lane's place in a slot of shared memory.
  __device__ __forceinline__ static void copy(std::uint32_t slot, const std::byte* from, std::uint32_t u) {
    stream_to_shared_16(slot, from + 1024 * u);
    stream_to_shared_16(slot + 512, from + 1024 * u + 512);
  }
  __device__ __forceinline__ void take(std::uint32_t slot) { step[0] = read_shared_16(slot), step[1] = read_shared_16(slot + 512); }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    a[0] = step[s].x, a[1] = step[s].y, a[2] = step[s].z, a[3] = step[s].w;
  }
};

template <>
struct StreamUnit<WeightFormat::fp8> {
  static constexpr int per_tile = 2, steps = 2;
  uint4 words;
  std::uint32_t factor;
  __device__ __forceinline__ static void copy(std::uint32_t slot, const std::byte* from, std::uint32_t u) {
    stream_to_shared_16(slot, from + 1056 * (u / 2) + 512 * (u % 2));
    __syncwarp();  // all lanes have read the factor that lies there
    if (threadIdx.x == 0) stream_to_shared_16(slot + 512, from + 1056 * (u / 2) + 1024);
  }
  __device__ __forceinline__ void take(std::uint32_t slot) {
    words = read_shared_16(slot);
    __syncwarp();  // what the first lane waited for
    factor = read_shared_4(slot + 512 - 16 * threadIdx.x);
  }
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s == 0 ? words.x : words.z, second = s == 0 ? words.y : words.w, both = __byte_perm(factor, 0, 0x1010);
    a[0] = expand_fp8(first & 0xFFFFu, both), a[1] = expand_fp8(first >> 16, both);
    a[2] = expand_fp8(second & 0xFFFFu, both), a[3] = expand_fp8(second >> 16, both);
  }
};

template <>
struct StreamUnit<WeightFormat::mxfp4> {
  static constexpr int per_tile = 1, steps = 4;
  uint4 words;
  std::uint32_t exponents;
  __device__ __forceinline__ void operand(int s, std::uint32_t (&a)[4]) const {
    expand_mxfp4(s < 2 ? words.x : words.z, s < 2 ? words.y : words.w, s % 2, mxfp4_factors(exponents, s / 2), a);
  }
};

// Through shared memory, in a ring of Depth slots. UnitsMax: of an item, exactly if Whole, when it is a multiple of Depth.
template <WeightFormat Format, int UnitsMax, int Depth, bool Whole>
struct WeightStream {
  using Unit = StreamUnit<Format>;
  static constexpr std::uint32_t slot_bytes = Format == WeightFormat::bf16 ? 1024 : 512 + 128;
  static constexpr std::uint32_t shared_bytes = Depth * slot_bytes;
  static_assert(!Whole || UnitsMax % Depth == 0);

  std::uint32_t ring;   // the lane's place in the first slot
  std::uint32_t units;  // of an item
  const std::byte* here = nullptr;
  const std::byte* next = nullptr;
  std::uint32_t turning = 0;  // unless Whole: offset of the slot that is used next

  __device__ __forceinline__ WeightStream(std::uint32_t shared, std::uint32_t unit_count) : ring(shared + 16 * threadIdx.x), units(unit_count) {}
  __device__ __forceinline__ std::uint32_t ahead() const { return Whole ? Depth : min(units, Depth); }
  __device__ __forceinline__ std::uint32_t slot(int u) const { return ring + (Whole ? u % Depth * slot_bytes : turning); }

  __device__ __forceinline__ void move_to(const std::byte* item) { next = item; }
  __device__ __forceinline__ void move_by(std::uint32_t bytes) { next += bytes; }
  // The first requests, for the item at `next` if there is one.
  __device__ __forceinline__ void start(bool exists) {
#pragma unroll
    for (std::uint32_t u = 0; u < Depth; ++u) {
      if (exists && u < ahead()) Unit::copy(ring + u * slot_bytes, next, u);
      copy_async_commit();
    }
  }
  // The item at `next` is used from here on.
  __device__ __forceinline__ void begin_item() { here = next; }
  __device__ __forceinline__ Unit take(int u) {
    if (Whole || units >= Depth) {
      copy_async_wait<Depth - 1>();
    } else {
      copy_async_wait<0>();
    }
    Unit unit;
    unit.take(slot(u));
    return unit;
  }
  // After the use of unit u: its slot takes the unit that is ahead() later, perhaps one of the item at `next`, if there is one.
  __device__ __forceinline__ void request(int u, bool exists) {
    const std::uint32_t later = u + ahead();
    const bool same = later < units;
    if (same || exists) Unit::copy(slot(u), same ? here : next, same ? later : later - units);
    copy_async_commit();
    if constexpr (!Whole) {
      turning += slot_bytes;
      if (turning == ahead() * slot_bytes) turning = 0;
    }
  }
};

// Through registers: each unit of the next item is requested when that of this one has been used.
template <int UnitsMax, int Depth, bool Whole>
struct WeightStream<WeightFormat::mxfp4, UnitsMax, Depth, Whole> {
  using Unit = StreamUnit<WeightFormat::mxfp4>;
  static constexpr std::uint32_t shared_bytes = 0;

  Unit ring[UnitsMax] = {};
  std::uint32_t units;
  const std::byte* next = nullptr;
  const std::byte* exponents = nullptr;

  __device__ __forceinline__ WeightStream(std::uint32_t, std::uint32_t unit_count) : units(unit_count) {}
  __device__ __forceinline__ void move_to(const std::byte* item) {
    next = item;
    exponents = item + 512 - 16 * threadIdx.x + threadIdx.x / 4 * 4;
  }
  __device__ __forceinline__ void move_by(std::uint32_t bytes) { next += bytes, exponents += bytes; }
  __device__ __forceinline__ void start(bool exists) {
#pragma unroll
    for (int u = 0; u < UnitsMax; ++u) request(u, exists && (Whole || u < units));
  }
  __device__ __forceinline__ void begin_item() {}
  __device__ __forceinline__ const Unit& take(int u) const { return ring[u]; }
  __device__ __forceinline__ void request(int u, bool exists) {
    load_weights_16_if(ring[u].words, next + 544 * u, exists);
    load_weights_4_if(ring[u].exponents, exponents + 544 * u, exists);
  }
};

}  // namespace althing::gpu::cuda
