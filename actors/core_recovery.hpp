// What a core that follows a dead one says about it: one log line and one observation a death, when the first stream that was taken over has moved on
// (or, without one, when ranks are there). Times are of the monotonic clock, which all processes share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "monitoring/metrics.hpp"

namespace althing::actors {

// Thread-safe.
class CoreRecovery {
 public:
  struct Found {
    std::uint64_t deaths = 0;
    std::uint64_t died_ns = 0;     // when the supervisor noticed the death
    std::uint64_t started_ns = 0;  // when this process began
    std::uint32_t open = 0;        // streams that go on
    std::uint32_t finished = 0;    // streams that can only be resumed
    std::uint32_t damaged = 0;     // places in the log that did not add up
    std::uint32_t given_up = 0;    // streams that too many cores died over
  };
  // To be made before anybody can ask for the metrics: from here on they say `recovering`, never `starting`.
  CoreRecovery(std::shared_ptr<monitoring::Metrics> metrics, Found found);

  void ready();
  void first_token();
  // Called once, with what the log line says. To be set before the other two can be called.
  std::function<void(double seconds, const Found& found)> on_told;

 private:
  void finish_locked(std::uint64_t now);

  std::shared_ptr<monitoring::Metrics> metrics_;
  Found found_;
  std::mutex mutex_;
  std::uint64_t rebuilt_ns_;
  std::uint64_t ready_ns_ = 0;
  bool told_ = false;
};

}  // namespace althing::actors
