// See the header.
#include "actors/rank_stamps.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace althing::actors {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "processes share these words, so a lock inside an atomic would not work");

Error failed(const char* what) {
  return Error{ErrorCode::io, std::string("the page of a rank's stamps cannot be used: ") + what + " failed: " + std::strerror(errno), ""};
}

void* map(int descriptor) { return ::mmap(nullptr, sizeof(RankStamps), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0); }

std::shared_ptr<RankStamps> owned(RankStamps* stamps) {
  return {stamps, [](RankStamps* page) { ::munmap(page, sizeof(RankStamps)); }};
}

}  // namespace

std::size_t StepTimes::bucket_of(std::uint64_t nanoseconds) {
  // Four buckets an octave: the two bits behind the leading one. Below 4 us everything is one bucket's worth of noise.
  const std::uint64_t quarter_us = std::max<std::uint64_t>(nanoseconds / 250, 4);
  const auto top = static_cast<std::size_t>(std::bit_width(quarter_us) - 1);
  const std::size_t bucket = (top - 2) * 4 + ((quarter_us >> (top - 2)) & 3);
  return std::min(bucket, octaves * 4 - 1);
}

std::uint64_t StepTimes::count() const {
  std::uint64_t sum = 0;
  for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
  return sum;
}

std::chrono::nanoseconds StepTimes::quantile(double fraction) const {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count())));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; wanted > 0 && bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket].load(std::memory_order_relaxed);
    if (seen < wanted) continue;
    const std::size_t top = bucket / 4 + 2, part = bucket % 4;
    return std::chrono::nanoseconds((std::uint64_t{250} * (4 + part + 1)) << (top - 2));
  }
  return {};
}

void RankStamps::step_done(std::uint64_t nanoseconds, std::uint32_t step_tokens) {
  times.add(nanoseconds);
  slowest_ns.store(std::max(slowest_ns.load(std::memory_order_relaxed), nanoseconds), std::memory_order_relaxed);
  tokens_done_max.store(std::max(tokens_done_max.load(std::memory_order_relaxed), step_tokens), std::memory_order_relaxed);
  steps.fetch_add(1, std::memory_order_relaxed);
}

Result<StampPage> StampPage::create() {
  Descriptor descriptor(::memfd_create("althing-stamps", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) return failed("memfd_create");
  if (::ftruncate(descriptor.get(), sizeof(RankStamps)) != 0) return failed("ftruncate");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return failed("sealing");
  void* address = map(descriptor.get());
  if (address == MAP_FAILED) return failed("mmap");
  return StampPage(std::move(descriptor), owned(new (address) RankStamps{}));
}

Result<StampPage> StampPage::adopt(Descriptor descriptor) {
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::corrupt, "this descriptor is not a page of stamps: " + why, "descriptor"};
  };
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) return failed("fstat");
  if (static_cast<std::size_t>(status.st_size) != sizeof(RankStamps))
    return refuse("it has " + std::to_string(status.st_size) + " bytes instead of " + std::to_string(sizeof(RankStamps)));
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) return refuse("it is not sealed");
  void* address = map(descriptor.get());
  if (address == MAP_FAILED) return failed("mmap");
  auto stamps = owned(std::launder(static_cast<RankStamps*>(address)));
  if (stamps->version != stamps_version)
    return refuse("its version is " + std::to_string(stamps->version) + ", this build speaks " + std::to_string(stamps_version));
  return StampPage(std::move(descriptor), std::move(stamps));
}

Heart::Heart(std::shared_ptr<RankStamps> stamps)
    : thread_([stamps = std::move(stamps)](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        while (!stop.stop_requested()) {
          stamps->beat_ns.store(monotonic_ns(), std::memory_order_relaxed);
          stamps->beats.fetch_add(1, std::memory_order_release);
          ended.wait_for(lock, stop, heart_interval, [] { return false; });
        }
      }) {}

StampedCommunicator::StampedCommunicator(std::shared_ptr<gpu::Communicator> inner, std::shared_ptr<RankStamps> stamps)
    : inner_(std::move(inner)), stamps_(std::move(stamps)) {
  stamps_->entered.store(0, std::memory_order_relaxed);
  stamps_->left.store(0, std::memory_order_relaxed);
}

// Plain loads and stores: one thread at a time is in a collective, and the watcher only wants to see that numbers move.
template <class Call>
bool StampedCommunicator::shown(const Call& call) {
  const std::uint64_t number = stamps_->entered.load(std::memory_order_relaxed) + 1;
  stamps_->entered.store(number, std::memory_order_relaxed);
  const bool met = call();
  stamps_->left.store(number, std::memory_order_relaxed);
  return met;
}

bool StampedCommunicator::all_reduce_sum(std::span<float> values) {
  return shown([&] { return inner_->all_reduce_sum(values); });
}
bool StampedCommunicator::all_reduce_sum(std::span<std::int64_t> values) {
  return shown([&] { return inner_->all_reduce_sum(values); });
}
bool StampedCommunicator::all_gather(std::span<const float> mine, std::span<const std::uint32_t> counts, std::span<float> all) {
  return shown([&] { return inner_->all_gather(mine, counts, all); });
}
bool StampedCommunicator::all_gather_sums(std::span<const float> mine, std::uint32_t group_size, std::span<const std::uint32_t> counts,
                                          std::span<float> all) {
  return shown([&] { return inner_->all_gather_sums(mine, group_size, counts, all); });
}
bool StampedCommunicator::barrier() {
  return shown([&] { return inner_->barrier(); });
}

}  // namespace althing::actors
