// Virtual time: what will happen, in order of time, and among equal times in the order in which it was said. Nothing happens between two entries, so
// a minute without events costs nothing. Invariant: the same entries in the same order happen in the same order, on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace althing::tests {

class Timeline {
 public:
  using Time = std::uint64_t;  // microseconds since the cluster was started

  Time now() const { return now_; }
  std::uint64_t happened() const { return happened_; }

  void at(Time when, std::function<void()> what) {
    heap_.push_back({std::max(when, now_), said_++, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void after(Time wait, std::function<void()> what) { at(now_ + wait, std::move(what)); }

  // Lets the next entry happen. False when there is none.
  bool step() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.when;
    ++happened_;
    entry.what();
    return true;
  }

 private:
  struct Entry {
    Time when = 0;
    std::uint64_t order = 0;
    std::function<void()> what;
  };
  static bool later(const Entry& a, const Entry& b) { return a.when != b.when ? a.when > b.when : a.order > b.order; }

  std::vector<Entry> heap_;
  Time now_ = 0;
  std::uint64_t said_ = 0, happened_ = 0;
};

}  // namespace althing::tests
