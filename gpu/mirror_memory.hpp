// Where one rank's copies of KV pages lie: a memfd that outlives the rank and the core, cut into slots of one page each, with a directory in front.
// Invariant: a slot that says it holds a key holds that page, byte for byte, or its checksum tells. A slot is first emptied, then written, and the
// word that makes it valid is stored last; so a writer killed at any byte leaves slots that hold what they say, or say nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::gpu {

// A checksum over pages, piece by piece: one wrong 64-bit word never passes, and more of them with a probability of 2^-64.
class PageChecksum {
 public:
  // REQUIRES: a multiple of 32 bytes.
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  std::uint64_t lanes_[4] = {0x243F6A8885A308D3u, 0x13198A2E03707344u, 0xA4093822299F31D0u, 0x082EFA98EC4E6C89u};
  std::uint64_t bytes_ = 0;
};

class MirrorMemory {
 public:
  // Pages of page_bytes that `bytes` have room for.
  static std::uint32_t slots_in(std::uint64_t bytes, std::uint64_t page_bytes);

  // A sealed memfd of this size for one place in the grid, empty; memory is taken page by page when it is written. `seed` is the secret that keys are
  // made with; all places of a server have the same. Errors: too_large, io.
  static Result<MirrorMemory> create(std::uint64_t bytes, PageKey seed);
  // Takes ownership of the descriptor, and changes nothing there: another process may be using it, with another layout, until take(). Errors: corrupt
  // (no such memfd), too_large (not one page fits), io.
  static Result<std::shared_ptr<MirrorMemory>> adopt(int descriptor, std::uint64_t identity, std::uint64_t page_bytes);
  // From here on the memory has this process's layout. What another layout, model or build left there (another `identity`) is dropped, and whoever
  // had taken it with that writes no more; a page that it is in the middle of is told by its checksum. REQUIRES: the place is this process's.
  void take();
  // Nobody has taken it since with another layout.
  bool is_taken() const;
  MirrorMemory(MirrorMemory&& other) noexcept;
  MirrorMemory& operator=(MirrorMemory&& other) noexcept;
  ~MirrorMemory();

  int descriptor() const { return descriptor_; }
  PageKey seed() const;
  std::uint32_t slots() const { return slots_; }

  // All that follows REQUIRES: take().
  // The slot holds nothing from here on, and may be written. Empty when the memory is somebody else's by now.
  std::span<std::byte> begin(MirrorSlot slot);
  // It holds the page of this key, unless the memory is somebody else's by now. REQUIRES: begin(), and the page written.
  void commit(MirrorSlot slot, PageKey key, std::uint64_t checksum);
  void forget(MirrorSlot slot);
  // The slot's bytes and their checksum, when it holds this very page.
  std::optional<std::pair<std::span<const std::byte>, std::uint64_t>> find(MirrorSlot slot, PageKey key) const;
  // All valid slots, ascending.
  std::vector<std::pair<MirrorSlot, PageKey>> contents() const;

 private:
  struct Header;
  struct Entry;
  MirrorMemory() = default;
  Status map(std::uint64_t bytes);
  std::uint64_t layout() const;
  Header& header() const;
  Entry& entry(MirrorSlot slot) const;
  std::byte* page(MirrorSlot slot) const;

  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t identity_ = 0;
  std::uint64_t page_bytes_ = 0;
  std::uint32_t slots_ = 0;
};

}  // namespace althing::gpu
