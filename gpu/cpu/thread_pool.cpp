// See the header. A round starts when round_ changes and ends when every worker has left it, so a late worker never sees the next round's task.
#include "gpu/cpu/thread_pool.hpp"

#include <algorithm>

namespace althing::gpu::cpu {
namespace {

constexpr int spins_max = 4000;  // about 40 us: ops of a decode step follow each other faster than a sleeping thread wakes

template <class Value>
void wait_while(const std::atomic<Value>& word, Value value, bool spins) {
  for (int i = 0; spins && i < spins_max; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    __builtin_ia32_pause();
  }
  while (word.load(std::memory_order_acquire) == value) word.wait(value, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) : spins_(threads <= std::thread::hardware_concurrency()) {
  for (std::uint32_t i = 1; i < std::max(threads, 1u); ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::uint32_t tasks, const std::function<void(std::uint32_t, std::uint32_t)>& task) {
  if (workers_.empty() || tasks <= 1) {
    for (std::uint32_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_tasks(0);
  for (std::uint32_t left = busy_.load(std::memory_order_acquire); left != 0; left = busy_.load(std::memory_order_acquire))
    wait_while(busy_, left, spins_);
}

void ThreadPool::work(std::uint32_t thread) {
  std::uint32_t seen = 0;
  while (true) {
    wait_while(round_, seen, spins_);
    ++seen;
    if (stop_) return;
    take_tasks(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void ThreadPool::take_tasks(std::uint32_t thread) {
  for (std::uint32_t i = next_.fetch_add(1, std::memory_order_relaxed); i < tasks_; i = next_.fetch_add(1, std::memory_order_relaxed))
    (*task_)(i, thread);
}

}  // namespace althing::gpu::cpu
