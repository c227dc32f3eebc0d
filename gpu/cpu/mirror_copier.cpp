// See the header. A page is copied piece by piece; between two pieces the copier looks whether the page is still its to read.
#include "gpu/cpu/mirror_copier.hpp"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace althing::gpu::cpu {
namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;

bool all_finite(std::span<const std::byte> bytes) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i + sizeof(std::uint32_t) <= bytes.size(); i += sizeof(std::uint32_t)) {
    std::uint32_t bits;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    most = std::max(most, bits & 0x7FFF'FFFFu);
  }
  return most < 0x7F80'0000u;
}

}  // namespace

MirrorCopier::MirrorCopier(const KvCache& cache, std::shared_ptr<MirrorMemory> memory)
    : cache_(cache), memory_(std::move(memory)), thread_([this] { work(); }) {}

MirrorCopier::~MirrorCopier() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    stop_copy_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MirrorCopier::hand_over(const MirrorPage& page) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= waiting_max) {
      ++skipped_;
      return;
    }
    waiting_.push_back(page);
  }
  wake_.notify_one();
}

// Those that wait are dropped, and the copy in hand is stopped.
template <class Unwanted>
void MirrorCopier::drop(std::unique_lock<std::mutex>& lock, Unwanted unwanted) {
  skipped_ += std::erase_if(waiting_, unwanted);
  if (!in_hand_ || !unwanted(*in_hand_)) return;
  stop_copy_ = true;
  idle_.wait(lock, [&] { return !in_hand_ || !unwanted(*in_hand_); });
}

void MirrorCopier::withdraw(std::vector<PageId> pages) {
  if (pages.empty()) return;
  std::sort(pages.begin(), pages.end());
  std::unique_lock lock(mutex_);
  drop(lock, [&](const MirrorPage& page) { return std::binary_search(pages.begin(), pages.end(), page.page); });
}

void MirrorCopier::forget(MirrorSlot slot) {
  std::unique_lock lock(mutex_);
  drop(lock, [&](const MirrorPage& page) { return page.slot == slot; });
  memory_->forget(slot);
}

void MirrorCopier::settle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return waiting_.empty() && !in_hand_; });
}

void MirrorCopier::work() {
  ::pthread_setname_np(::pthread_self(), thread_name);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    in_hand_ = waiting_.front();
    waiting_.pop_front();
    stop_copy_ = false;
    const MirrorPage page = *in_hand_;
    lock.unlock();
    ++(copy(page) ? copied_ : skipped_);
    lock.lock();
    in_hand_.reset();
    idle_.notify_all();
  }
}

// False when the copy was stopped, when the mirror has another owner, or when the page holds NaN or infinity: such a page would fail whoever gets it
// back.
bool MirrorCopier::copy(const MirrorPage& page) {
  const std::span<const std::byte> source = cache_.bytes_of(page.page, page.group);
  const std::span<std::byte> target = memory_->begin(page.slot);
  if (target.empty()) return false;
  PageChecksum checksum;
  for (std::size_t at = 0; at < source.size(); at += piece_bytes) {
    if (stop_copy_.load(std::memory_order_acquire)) return false;
    const auto piece = source.subspan(at, std::min(piece_bytes, source.size() - at));
    if (!all_finite(piece)) return false;
    std::memcpy(target.data() + at, piece.data(), piece.size());
    checksum.add(piece);
  }
  memory_->commit(page.slot, page.key, checksum.value());
  return true;
}

bool MirrorCopier::restore(const MirrorPage& page) {
  const std::span<std::byte> target = cache_.bytes_of(page.page, page.group);
  const auto found = memory_->find(page.slot, page.key);
  if (!found) {
    std::fill(target.begin(), target.end(), std::byte{0});
    ++missing_;
    return false;
  }
  PageChecksum checksum;
  for (std::size_t at = 0; at < target.size(); at += piece_bytes) {
    const auto piece = target.subspan(at, std::min(piece_bytes, target.size() - at));
    std::memcpy(piece.data(), found->first.data() + at, piece.size());
    // Of what arrived, not of what was read: the slot could change in between only by a fault, and that must not matter.
    checksum.add(piece);
  }
  if (checksum.value() != found->second) {
    std::fill(target.begin(), target.end(), std::byte{0});
    memory_->forget(page.slot);
    ++corrupt_;
    return false;
  }
  ++restored_;
  return true;
}

MirrorCounts MirrorCopier::counts() const { return {copied_, skipped_, restored_, missing_, corrupt_}; }

}  // namespace althing::gpu::cpu
