// The bytes of the shared segment between CPU ranks, in one place: header, one call card a rank, two input buffers a rank, one output buffer.
// Every offset and the segment's size follow from the world size alone, so two builds that agree on `segment_version` agree on all of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace althing::gpu {

inline constexpr std::uint64_t segment_magic = 0x314d5347484c5441;  // "ATLHGSM1"
inline constexpr std::uint32_t segment_version = 1;
inline constexpr std::uint32_t segment_world_max = 64;
inline constexpr std::size_t segment_page = 4096;
inline constexpr std::size_t segment_buffer_bytes = std::size_t{256} << 10;  // longer spans are sent in pieces of this size

// `turn` counts finished barriers in its low 31 bits; its top bit is the abort word. One word carries both because it is what sleepers wait on:
// an abort between a waiter's last look and its sleep changes the value and the kernel refuses the sleep.
inline constexpr std::uint32_t segment_abort_bit = 0x8000'0000u;

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t world;
  std::uint64_t epoch;
  std::uint64_t bytes;
  alignas(64) std::atomic<std::uint64_t> joined;  // bit r: rank r has a communicator
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> turn;
  alignas(64) std::atomic<std::uint32_t> sleepers;
};
static_assert(sizeof(SegmentHeader) <= segment_page);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "processes share these words, so a lock inside an atomic would not work");

// What a rank is calling, written before the barrier and compared after it: ranks that disagree must not mix their data.
struct alignas(64) SegmentCall {
  std::uint32_t kind;
  std::uint64_t count;
};

struct SegmentLayout {
  std::uint32_t world;

  constexpr std::size_t call(std::uint32_t rank, std::uint32_t parity) const {
    return segment_page + (std::size_t{rank} * 2 + parity) * sizeof(SegmentCall);
  }
  constexpr std::size_t inputs() const { return 2 * segment_page + segment_page * ((2 * sizeof(SegmentCall) * world) / segment_page); }
  constexpr std::size_t input(std::uint32_t rank, std::uint32_t parity) const {
    return inputs() + (std::size_t{rank} * 2 + parity) * segment_buffer_bytes;
  }
  constexpr std::size_t output() const { return inputs() + std::size_t{world} * 2 * segment_buffer_bytes; }
  constexpr std::size_t bytes() const { return output() + segment_buffer_bytes; }
};

}  // namespace althing::gpu
