// See the header. A collective is: write my input, barrier, read the others'. Inputs are double-buffered by the parity of the call, so one
// barrier a call is enough: whoever writes the same buffer again has passed the next call's barrier, which every reader enters only
// after reading. Long spans take a second barrier and share the additions: each rank reduces one stripe. Both ways add in rank order.
#include "gpu/comm/shared_memory_communicator.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <type_traits>

#include "gpu/comm/segment_layout.hpp"

namespace althing::gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t share_bytes_min = std::size_t{16} << 10;  // below it every rank adds up everything: cheaper than a second barrier
constexpr auto spin_max = std::chrono::microseconds{50};
// A sleeper looks again after this time: a rank killed between finishing a barrier and waking the others must not leave them asleep.
constexpr std::int64_t sleep_slice_ns = 20'000'000;

Error system_error(const std::string& what) {
  return Error{ErrorCode::io, "the shared segment between ranks cannot be used: " + what + " failed: " + std::strerror(errno), {}};
}

std::uint32_t* word(std::atomic<std::uint32_t>& value) { return reinterpret_cast<std::uint32_t*>(&value); }

// Shared (not private) futexes: waiters may be in other processes.
void futex_wait(std::atomic<std::uint32_t>& value, std::uint32_t expected, std::int64_t nanoseconds) {
  const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
  syscall(SYS_futex, word(value), FUTEX_WAIT, expected, &time, nullptr, 0);
}
void futex_wake_all(std::atomic<std::uint32_t>& value) { syscall(SYS_futex, word(value), FUTEX_WAKE, 0x7fff'ffff, nullptr, nullptr, 0); }

void pause_briefly() { __builtin_ia32_pause(); }

}  // namespace

struct SharedSegment::State {
  int descriptor = -1;
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  // Copies: the header lies in memory that peers can write.
  std::uint32_t world = 0;
  EpochId epoch;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (base != nullptr) munmap(base, bytes);
    if (descriptor >= 0) close(descriptor);
  }

  SegmentHeader& header() const { return *std::launder(reinterpret_cast<SegmentHeader*>(base)); }
  SegmentLayout layout() const { return {world}; }
  bool aborted() const { return (header().turn.load(std::memory_order_acquire) & segment_abort_bit) != 0; }
  void abort() const {
    header().turn.fetch_or(segment_abort_bit, std::memory_order_acq_rel);
    futex_wake_all(header().turn);
  }
  bool map() {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) return false;
    base = static_cast<std::byte*>(address);
    return true;
  }
};

namespace {

enum CallKind : std::uint32_t { call_sum_float = 1, call_sum_integer = 2, call_gather = 3, call_barrier = 4 };
constexpr std::uint32_t call_kind_bits = 8;  // above them a gather says how large its groups are

// Ranks [begin, end).
struct Ranks {
  std::uint32_t begin;
  std::uint32_t end;
};

template <class State>
class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(std::shared_ptr<State> state, RankId rank, std::chrono::milliseconds wait_max)
      : state_(std::move(state)), rank_(rank), wait_max_(wait_max), spins_(state_->world <= std::thread::hardware_concurrency()) {}

  RankId rank() const override { return rank_; }
  std::uint32_t world() const override { return state_->world; }
  EpochId epoch() const override { return state_->epoch; }

  bool all_reduce_sum(std::span<float> values) override { return sum(values, call_sum_float); }
  bool all_reduce_sum(std::span<std::int64_t> values) override { return sum(values, call_sum_integer); }

  bool all_gather(std::span<const float> mine, std::span<const std::uint32_t> counts, std::span<float> all) override {
    return all_gather_sums(mine, 1, counts, all);
  }

  bool all_gather_sums(std::span<const float> mine, std::uint32_t group_size, std::span<const std::uint32_t> counts, std::span<float> all) override {
    std::uint64_t total = 0;
    std::uint32_t longest = 0;
    for (const std::uint32_t count : counts) total += count, longest = std::max(longest, count);
    if (group_size == 0 || group_size * counts.size() != world() || counts[rank_.value / group_size] != mine.size() || all.size() != total)
      return give_up();
    constexpr std::size_t piece = segment_buffer_bytes / sizeof(float);
    std::size_t at = 0;
    do {
      if (state_->aborted()) return false;
      const std::size_t size = at < mine.size() ? std::min(piece, mine.size() - at) : 0;
      if (size != 0) std::memcpy(input(rank_.value), mine.data() + at, size * sizeof(float));
      if (!meet(call_gather + (group_size << call_kind_bits), total)) return false;
      std::size_t begin = 0;
      for (std::uint32_t g = 0; g < counts.size(); begin += counts[g++]) {
        const std::size_t theirs = at < counts[g] ? std::min<std::size_t>(piece, counts[g] - at) : 0;
        add_up(all.data() + begin + at, {g * group_size, (g + 1) * group_size}, 0, theirs);
      }
      at += piece;
      ++calls_;
    } while (at < longest);
    return true;
  }

  bool barrier() override {
    if (state_->aborted()) return false;
    const bool met = meet(call_barrier, 0);
    ++calls_;
    return met;
  }

 private:
  // Every call looks for an abort before it writes: a rank that gave up may call again while others still compare what it called before, and add it
  // up.
  template <class T>
  bool sum(std::span<T> values, CallKind kind) {
    constexpr std::size_t piece = segment_buffer_bytes / sizeof(T);
    std::size_t at = 0;
    do {
      const std::size_t size = std::min(piece, values.size() - at);
      if (!sum_piece(values.subspan(at, size), kind, values.size())) return false;
      at += size;
    } while (at < values.size());
    return true;
  }

  template <class T>
  bool sum_piece(std::span<T> values, CallKind kind, std::uint64_t total) {
    if (state_->aborted()) return false;
    if (!values.empty()) std::memcpy(input(rank_.value), values.data(), values.size_bytes());
    if (!meet(kind, total)) return false;
    const bool shared = values.size_bytes() > share_bytes_min && world() > 1;
    if (!shared) {
      add_up(values.data(), {0, world()}, 0, values.size());
    } else {
      const std::size_t begin = values.size() * rank_.value / world();
      const std::size_t end = values.size() * (rank_.value + 1) / world();
      T* output = reinterpret_cast<T*>(state_->base + state_->layout().output());
      add_up(output, {0, world()}, begin, end);
      if (!wait_for_all()) return false;
      std::memcpy(values.data(), output, values.size_bytes());
    }
    ++calls_;
    return true;
  }

  // sums[i] = the sum of the ranks' i-th values in rank order, for begin <= i < end. It begins with the first rank's value, not with 0: a sum of one
  // is that value, also where it is -0.
  template <class T>
  void add_up(T* sums, Ranks ranks, std::size_t begin, std::size_t end) const {
    if (begin == end) return;
    std::memcpy(sums + begin, reinterpret_cast<const T*>(input(ranks.begin)) + begin, (end - begin) * sizeof(T));
    for (std::uint32_t r = ranks.begin + 1; r < ranks.end; ++r) {
      const T* theirs = reinterpret_cast<const T*>(input(r));
      for (std::size_t i = begin; i < end; ++i) {
        if constexpr (std::is_integral_v<T>) {
          // Through unsigned: a sum that overflows wraps on every rank alike instead of being undefined.
          sums[i] = static_cast<T>(static_cast<std::uint64_t>(sums[i]) + static_cast<std::uint64_t>(theirs[i]));
        } else {
          sums[i] += theirs[i];
        }
      }
    }
  }

  std::byte* input(std::uint32_t rank) const { return state_->base + state_->layout().input(rank, calls_ & 1); }
  SegmentCall& call(std::uint32_t rank) const { return *reinterpret_cast<SegmentCall*>(state_->base + state_->layout().call(rank, calls_ & 1)); }

  // Says what this rank calls, waits for all, and compares.
  bool meet(std::uint32_t kind, std::uint64_t count) {
    SegmentCall& mine = call(rank_.value);
    mine.kind = kind;
    mine.count = count;
    if (!wait_for_all()) return false;
    for (std::uint32_t r = 0; r < world(); ++r)
      if (call(r).kind != kind || call(r).count != count) return give_up();
    return true;
  }

  bool give_up() {
    state_->abort();
    return false;
  }

  bool wait_for_all() {
    SegmentHeader& header = state_->header();
    const std::uint32_t before = header.turn.load(std::memory_order_acquire);
    if ((before & segment_abort_bit) != 0) return false;
    if (header.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == world()) {
      header.arrived.store(0, std::memory_order_relaxed);
      std::uint32_t turn = before;
      // seq_cst pairs with the sleeper's count-then-look: one of the two sees the other.
      while (!header.turn.compare_exchange_weak(turn, (turn & segment_abort_bit) | ((turn + 1) & ~segment_abort_bit), std::memory_order_seq_cst)) {
      }
      if (header.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(header.turn);
      return (turn & segment_abort_bit) == 0;
    }
    return wait_for_turn(header, before);
  }

  bool wait_for_turn(SegmentHeader& header, std::uint32_t before) {
    const auto start = Clock::now();
    const auto moved = [&](std::uint32_t turn) { return turn != before; };
    std::uint32_t turn = header.turn.load(std::memory_order_acquire);
    if (spins_) {
      for (std::uint32_t i = 0; !moved(turn); ++i) {
        pause_briefly();
        if (i % 64 == 63 && Clock::now() - start > spin_max) break;
        turn = header.turn.load(std::memory_order_acquire);
      }
    }
    while (!moved(turn)) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(start + wait_max_ - Clock::now()).count();
      if (left <= 0) return give_up();
      header.sleepers.fetch_add(1, std::memory_order_seq_cst);
      if (!moved(header.turn.load(std::memory_order_seq_cst))) futex_wait(header.turn, before, std::min<std::int64_t>(left, sleep_slice_ns));
      header.sleepers.fetch_sub(1, std::memory_order_relaxed);
      turn = header.turn.load(std::memory_order_acquire);
    }
    return (turn & segment_abort_bit) == 0;
  }

  std::shared_ptr<State> state_;
  RankId rank_;
  std::chrono::milliseconds wait_max_;
  bool spins_;               // more ranks than cores: a spinning rank would keep the one it waits for from running
  std::uint32_t calls_ = 0;  // pieces so far; its parity picks the input buffers and is the same on every rank
};

}  // namespace

Result<SharedSegment> SharedSegment::create(std::uint32_t world, EpochId epoch) {
  if (world == 0 || world > segment_world_max)
    return Error{ErrorCode::invalid_argument,
                 "a shared segment for " + std::to_string(world) + " ranks was asked for; use 1 to " + std::to_string(segment_world_max), "world"};
  auto state = std::make_shared<State>();
  state->world = world;
  state->epoch = epoch;
  state->bytes = state->layout().bytes();
  state->descriptor = memfd_create("althing-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (state->descriptor < 0) return system_error("memfd_create");
  if (ftruncate(state->descriptor, static_cast<off_t>(state->bytes)) != 0) return system_error("ftruncate");
  if (fcntl(state->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return system_error("sealing");
  if (!state->map()) return system_error("mmap");
  auto* header = new (state->base) SegmentHeader{};
  header->version = segment_version;
  header->world = world;
  header->epoch = epoch.value;
  header->bytes = state->bytes;
  header->magic = segment_magic;
  return SharedSegment(std::move(state));
}

Result<SharedSegment> SharedSegment::adopt(int descriptor) {
  auto state = std::make_shared<State>();
  state->descriptor = descriptor;
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::corrupt, "this descriptor is not a segment of ranks: " + why + "; pass the one that the supervisor created",
                 "descriptor"};
  };
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return system_error("fstat");
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return refuse("it has no seals (not a memfd)");
  if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
    return refuse("it is not sealed against shrinking and growing (seals " + std::to_string(seals) + ")");
  state->bytes = static_cast<std::size_t>(status.st_size);
  if (state->bytes < SegmentLayout{1}.bytes())
    return refuse("it has " + std::to_string(state->bytes) + " bytes, the smallest has " + std::to_string(SegmentLayout{1}.bytes()));
  if (!state->map()) return system_error("mmap");
  const SegmentHeader& header = state->header();
  if (header.magic != segment_magic) return refuse("the magic number is wrong");
  if (header.version != segment_version)
    return refuse("its version is " + std::to_string(header.version) + ", this build speaks " + std::to_string(segment_version));
  state->world = header.world;
  state->epoch = EpochId{header.epoch};
  if (state->world == 0 || state->world > segment_world_max) return refuse("it names a world of " + std::to_string(state->world) + " ranks");
  if (state->bytes != state->layout().bytes())
    return refuse("a world of " + std::to_string(state->world) + " needs " + std::to_string(state->layout().bytes()) + " bytes, it has " +
                  std::to_string(state->bytes));
  return SharedSegment(std::move(state));
}

SharedSegment::SharedSegment(std::shared_ptr<State> state) : state_(std::move(state)) {}
SharedSegment::SharedSegment(SharedSegment&&) noexcept = default;
SharedSegment& SharedSegment::operator=(SharedSegment&&) noexcept = default;
SharedSegment::~SharedSegment() = default;

int SharedSegment::descriptor() const { return state_->descriptor; }
std::uint32_t SharedSegment::world() const { return state_->world; }
EpochId SharedSegment::epoch() const { return state_->epoch; }
void SharedSegment::abort() { state_->abort(); }
bool SharedSegment::aborted() const { return state_->aborted(); }

std::unique_ptr<Communicator> SharedSegment::join(RankId rank, std::chrono::milliseconds wait_max) {
  if (rank.value >= state_->world) return nullptr;
  const std::uint64_t bit = std::uint64_t{1} << rank.value;
  if ((state_->header().joined.fetch_or(bit, std::memory_order_acq_rel) & bit) != 0) return nullptr;
  return std::make_unique<SharedMemoryCommunicator<State>>(state_, rank, wait_max);
}

}  // namespace althing::gpu
