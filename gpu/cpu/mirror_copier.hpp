// Copies full KV pages of a CPU rank to its mirror, on a thread of its own, and back. The step only hands pages over. A page that gets another owner
// before it was copied is withdrawn, also in the middle of its copy, so what is copied is always what was handed over; a page is a moment's work, and
// a withdrawal waits for a fraction of one. Invariant: no byte of a page is read here between withdraw(page) and the next hand_over of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "gpu/cpu/kv_cache.hpp"
#include "gpu/executor.hpp"
#include "gpu/mirror_memory.hpp"

namespace althing::gpu::cpu {

class MirrorCopier {
 public:
  // Pages that may wait for their copy; one that finds the queue full is skipped.
  static constexpr std::size_t waiting_max = 256;
  // What ps and top call the thread.
  static constexpr const char* thread_name = "kv-mirror";

  // REQUIRES: `cache` outlives this.
  MirrorCopier(const KvCache& cache, std::shared_ptr<MirrorMemory> memory);
  ~MirrorCopier();
  MirrorCopier(const MirrorCopier&) = delete;
  MirrorCopier& operator=(const MirrorCopier&) = delete;

  // REQUIRES: the page is full, and nobody writes it before it is withdrawn.
  void hand_over(const MirrorPage& page);
  void withdraw(std::vector<PageId> pages);
  void forget(MirrorSlot slot);
  // Returns once all that was handed over is copied.
  void settle();
  // Fills page.page from its slot. False when the slot does not hold the page, or not whole: the KV page is zeros then. Any thread, for different
  // pages. REQUIRES: settled, and the page is withdrawn.
  bool restore(const MirrorPage& page);

  const MirrorMemory& memory() const { return *memory_; }
  MirrorCounts counts() const;

 private:
  void work();
  bool copy(const MirrorPage& page);
  template <class Unwanted>
  void drop(std::unique_lock<std::mutex>& lock, Unwanted unwanted);

  const KvCache& cache_;
  std::shared_ptr<MirrorMemory> memory_;
  std::atomic<std::uint64_t> copied_{0}, skipped_{0}, restored_{0}, missing_{0}, corrupt_{0};

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<MirrorPage> waiting_;
  std::optional<MirrorPage> in_hand_;
  std::atomic<bool> stop_copy_{false};  // of the page in hand
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace althing::gpu::cpu
