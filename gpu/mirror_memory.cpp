// See the header. Entries are read with acquire and made valid with release; on the other side of a SIGKILL only the order of the writer's stores
// counts, which is the same.
#include "gpu/mirror_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace althing::gpu {
namespace {

constexpr std::uint64_t magic = 0x31524F5252494D41;  // "AMIRROR1"
constexpr std::uint64_t alignment = 4096;

constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15u;
  return std::rotl(state, 29);
}

// Never 0, which is an empty slot.
constexpr std::uint64_t state_of(MirrorSlot slot, PageKey key, std::uint64_t checksum) {
  return mixed(mixed(mixed(mixed(slot.value, key.high), key.low), checksum), magic) | 1;
}

Error system_error(const char* call) {
  return Error{ErrorCode::io, std::string("the KV mirror's memory: ") + call + ": " + std::strerror(errno), "kv-mirror-mib"};
}

}  // namespace

struct MirrorMemory::Header {
  std::uint64_t magic;
  std::uint64_t seed_high, seed_low;
  std::uint64_t identity, page_bytes;
  std::atomic<std::uint64_t> laid_out;  // a checksum of the two; stored last. 0: nothing is here
};

struct MirrorMemory::Entry {
  std::atomic<std::uint64_t> state;  // 0: empty; else what state_of() says of the rest
  std::uint64_t key_high, key_low, checksum;
};

namespace {

constexpr std::uint64_t header_bytes = 64;
constexpr std::uint64_t entry_bytes = 32;

constexpr std::uint64_t pages_at(std::uint64_t slots) { return (header_bytes + slots * entry_bytes + alignment - 1) / alignment * alignment; }

}  // namespace

void PageChecksum::add(std::span<const std::byte> bytes) {
  std::uint64_t a = lanes_[0], b = lanes_[1], c = lanes_[2], d = lanes_[3];
  for (std::size_t i = 0; i + 32 <= bytes.size(); i += 32) {
    std::uint64_t words[4];
    std::memcpy(words, bytes.data() + i, sizeof words);
    a = mixed(a, words[0]);
    b = mixed(b, words[1]);
    c = mixed(c, words[2]);
    d = mixed(d, words[3]);
  }
  lanes_[0] = a, lanes_[1] = b, lanes_[2] = c, lanes_[3] = d;
  bytes_ += bytes.size();
}

std::uint64_t PageChecksum::value() const {
  std::uint64_t value = bytes_;
  for (const std::uint64_t lane : lanes_) value = mixed(value, lane);
  return value;
}

std::uint32_t MirrorMemory::slots_in(std::uint64_t bytes, std::uint64_t page_bytes) {
  if (page_bytes == 0 || bytes < alignment) return 0;
  std::uint64_t slots = (bytes - header_bytes) / (page_bytes + entry_bytes);
  while (slots > 0 && pages_at(slots) + slots * page_bytes > bytes) --slots;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, std::numeric_limits<std::uint32_t>::max() / 2));
}

Result<MirrorMemory> MirrorMemory::create(std::uint64_t bytes, PageKey seed) {
  MirrorMemory memory;
  memory.descriptor_ = memfd_create("althing-kv-mirror", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory.descriptor_ < 0) return system_error("memfd_create");
  if (bytes < alignment) return Error{ErrorCode::invalid_argument, "a KV mirror of " + std::to_string(bytes) + " bytes cannot be", "kv-mirror-mib"};
  if (ftruncate(memory.descriptor_, static_cast<off_t>(bytes)) != 0) return system_error("ftruncate");
  if (fcntl(memory.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return system_error("sealing");
  if (auto status = memory.map(bytes); !status) return status.error();
  auto* header = new (memory.base_) Header{};
  header->seed_high = seed.high;
  header->seed_low = seed.low;
  header->magic = magic;
  return memory;
}

Result<std::shared_ptr<MirrorMemory>> MirrorMemory::adopt(int descriptor, std::uint64_t identity, std::uint64_t page_bytes) {
  std::shared_ptr<MirrorMemory> memory(new MirrorMemory);
  memory->descriptor_ = descriptor;
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::corrupt, "this descriptor is not a KV mirror: " + why + "; pass the one that the supervisor created", "descriptor"};
  };
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return system_error("fstat");
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
    return refuse("it is not a memfd that is sealed against shrinking and growing");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes < alignment) return refuse("it has " + std::to_string(bytes) + " bytes");
  if (auto mapped = memory->map(bytes); !mapped) return mapped.error();
  if (memory->header().magic != magic) return refuse("the magic number is wrong");
  if (slots_in(bytes, page_bytes) == 0 || page_bytes % 32 != 0)
    return Error{ErrorCode::too_large,
                 "a KV mirror of " + std::to_string(bytes) + " bytes has no room for a page of " + std::to_string(page_bytes) +
                     " bytes; give it more, or 0 for none",
                 "kv-mirror-mib"};
  memory->identity_ = identity;
  memory->page_bytes_ = page_bytes;
  memory->slots_ = slots_in(bytes, page_bytes);
  return memory;
}

std::uint64_t MirrorMemory::layout() const { return mixed(mixed(magic, identity_), page_bytes_) | 1; }

bool MirrorMemory::is_taken() const {
  const Header& h = header();
  return h.laid_out.load(std::memory_order_acquire) == layout() && h.identity == identity_ && h.page_bytes == page_bytes_;
}

// Where the layout is the same as before, everything stays.
void MirrorMemory::take() {
  if (is_taken()) return;
  Header& h = header();
  h.laid_out.store(0, std::memory_order_seq_cst);
  for (std::uint32_t slot = 0; slot < slots_; ++slot) entry(MirrorSlot{slot}).state.store(0, std::memory_order_seq_cst);
  h.identity = identity_;
  h.page_bytes = page_bytes_;
  h.laid_out.store(layout(), std::memory_order_release);
}

MirrorMemory::MirrorMemory(MirrorMemory&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      identity_(other.identity_),
      page_bytes_(other.page_bytes_),
      slots_(other.slots_) {}

MirrorMemory& MirrorMemory::operator=(MirrorMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(identity_, other.identity_);
  std::swap(page_bytes_, other.page_bytes_);
  std::swap(slots_, other.slots_);
  return *this;
}

MirrorMemory::~MirrorMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Status MirrorMemory::map(std::uint64_t bytes) {
  static_assert(sizeof(Header) <= header_bytes && sizeof(Entry) == entry_bytes && std::atomic<std::uint64_t>::is_always_lock_free);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return system_error("mmap");
  // A dump of a process that died must not hold what users wrote.
  madvise(memory, bytes, MADV_DONTDUMP);
  base_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return Ok{};
}

PageKey MirrorMemory::seed() const { return {header().seed_high, header().seed_low}; }
MirrorMemory::Header& MirrorMemory::header() const { return *std::launder(reinterpret_cast<Header*>(base_)); }
MirrorMemory::Entry& MirrorMemory::entry(MirrorSlot slot) const {
  return *std::launder(reinterpret_cast<Entry*>(base_ + header_bytes + slot.value * entry_bytes));
}
std::byte* MirrorMemory::page(MirrorSlot slot) const { return base_ + pages_at(slots_) + slot.value * page_bytes_; }

std::span<std::byte> MirrorMemory::begin(MirrorSlot slot) {
  if (!is_taken()) return {};
  forget(slot);
  return {page(slot), page_bytes_};
}

void MirrorMemory::commit(MirrorSlot slot, PageKey key, std::uint64_t checksum) {
  if (!is_taken()) return;
  Entry& e = entry(slot);
  e.key_high = key.high;
  e.key_low = key.low;
  e.checksum = checksum;
  e.state.store(state_of(slot, key, checksum), std::memory_order_release);
}

// Nothing that is written to the slot afterwards may be seen before this.
void MirrorMemory::forget(MirrorSlot slot) {
  if (is_taken()) entry(slot).state.exchange(0, std::memory_order_acq_rel);
}

std::optional<std::pair<std::span<const std::byte>, std::uint64_t>> MirrorMemory::find(MirrorSlot slot, PageKey key) const {
  if (slot.value >= slots_ || !is_taken()) return std::nullopt;
  const Entry& e = entry(slot);
  const std::uint64_t state = e.state.load(std::memory_order_acquire);
  if (state != state_of(slot, key, e.checksum) || e.key_high != key.high || e.key_low != key.low) return std::nullopt;
  return std::pair{std::span<const std::byte>(page(slot), page_bytes_), e.checksum};
}

std::vector<std::pair<MirrorSlot, PageKey>> MirrorMemory::contents() const {
  std::vector<std::pair<MirrorSlot, PageKey>> all;
  for (std::uint32_t s = 0; s < slots_; ++s) {
    const Entry& e = entry(MirrorSlot{s});
    if (e.state.load(std::memory_order_acquire) == 0) continue;
    const PageKey key{e.key_high, e.key_low};
    if (find(MirrorSlot{s}, key)) all.emplace_back(MirrorSlot{s}, key);
  }
  return all;
}

}  // namespace althing::gpu
