// A few threads that live as long as their executor and share out numbered tasks. Which thread runs a task never changes a bit of a result:
// tasks write disjoint memory. The caller takes part, so a pool of one has no thread and no synchronisation at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace althing::gpu::cpu {

class ThreadPool {
 public:
  // `threads` counts the caller; at least 1.
  explicit ThreadPool(std::uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::uint32_t threads() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }

  // Runs task(index, thread) for every index below `tasks` and returns when all are done. thread < threads(). One caller at a time.
  void run(std::uint32_t tasks, const std::function<void(std::uint32_t index, std::uint32_t thread)>& task);

 private:
  void work(std::uint32_t thread);
  void take_tasks(std::uint32_t thread);

  std::vector<std::thread> workers_;
  bool spins_;
  const std::function<void(std::uint32_t, std::uint32_t)>* task_ = nullptr;
  std::uint32_t tasks_ = 0;
  bool stop_ = false;
  std::atomic<std::uint32_t> next_{0};
  std::atomic<std::uint32_t> round_{0};
  std::atomic<std::uint32_t> busy_{0};
};

}  // namespace althing::gpu::cpu
