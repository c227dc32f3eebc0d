// The newest of what happened to a server's processes: deaths, recoveries, quarantine. Numbers go up by one an event and never start again while the
// supervisor lives, so a reader that knows the last number it has seen misses nothing that is still kept, and sees nothing twice.
//
// The supervisor, who sees everything happen, numbers events; the core, who has the HTTP server, holds a copy that travels as text lines.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace althing::monitoring {

struct ServerEvent {
  std::string kind;  // rank_died, spare_died, core_died, epoch_stalled, recovered, core_recovered, quarantined, released, degraded, whole_again
  std::optional<std::uint32_t> rank{};
  std::string cause{}, how{};  // a word; a sentence for people
  std::uint64_t epoch = 0;
  // Of recoveries.
  std::uint64_t next_epoch = 0;
  std::string recovered_by{};
  std::optional<std::uint64_t> streams{};
  std::vector<double> phase_seconds{};  // detect, agree, weights, join, recompute, resume; or none
  double total_seconds = 0;
};

// Thread-safe.
class EventRing {
 public:
  static constexpr std::size_t kept_max = 200;

  // What happened at `unix_seconds`; returns its number, 1 for the first.
  std::uint64_t add(const ServerEvent& event, double unix_seconds);

  // Events after `number` as lines for take(), in pieces of at most `bytes_max` where a line is not longer itself.
  std::vector<std::string> lines_after(std::uint64_t number, std::size_t bytes_max) const;
  // Lines of another ring. Events that are here already, and lines that are none, change nothing.
  void take(std::string_view lines);

  // {"newest":N,"oldest":M,"events":[…]}, ascending, those after `number`; both numbers are 0 while there is none.
  std::string json_after(std::uint64_t number) const;
  std::uint64_t newest() const;

 private:
  struct Kept {
    std::uint64_t number = 0;
    std::string json;
  };
  void keep_locked(Kept kept);

  mutable std::mutex mutex_;
  std::deque<Kept> kept_;
};

}  // namespace althing::monitoring
