// Knows which streams a lost membership interrupted, and when each has its next token: the last two phases of a recovery, which only the core can
// see.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_set>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::actors {

class ResumeWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Resumed {
    std::chrono::milliseconds first_token{}, last_token{};  // since the membership was complete
    std::size_t streams = 0;
    std::uint64_t tokens_restored = 0, tokens_recomputed = 0;  // by the scheduler, who knows
  };

  // A membership is over. Losses that follow each other add up.
  void interrupted() { pending_ = true; }
  void interrupted(RequestId request) {
    if (waiting_.insert(request).second) ++streams_;
  }
  // Told about also when nothing was interrupted: then it is over at once.
  void ready(Clock::time_point now) { pending_ = true, ready_ = now, first_.reset(), last_ = now; }
  // The request has a token again, or its end.
  void moved(RequestId request, Clock::time_point now) {
    if (!pending_ || waiting_.erase(request) == 0) return;
    if (!first_) first_ = now;
    last_ = now;
  }
  // Once after each recovery, when every interrupted stream goes on.
  std::optional<Resumed> take() {
    if (!pending_ || !ready_ || !waiting_.empty()) return std::nullopt;
    const auto since = [&](Clock::time_point when) {
      return std::max(std::chrono::milliseconds(0), std::chrono::duration_cast<std::chrono::milliseconds>(when - *ready_));
    };
    const Resumed resumed{since(first_.value_or(*ready_)), since(last_), streams_, 0, 0};
    pending_ = false;
    ready_.reset();
    streams_ = 0;
    return resumed;
  }

 private:
  bool pending_ = false;
  std::optional<Clock::time_point> ready_, first_;
  Clock::time_point last_;
  std::unordered_set<RequestId> waiting_;
  std::size_t streams_ = 0;
};

}  // namespace althing::actors
