// Decides from the ranks' stamps and from what the kernel says who is frozen or stuck. Slowness is no death: time counts only while the watcher
// itself gets to look, and against a rank only while none of its threads wants a processor, or by the processor time that it burned without progress.
// So a machine that is too busy delays a verdict and never makes one. Pure but for the clock and the states that are passed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/process_state.hpp"
#include "actors/rank_stamps.hpp"

namespace althing::actors {

struct WatchLimits {
  std::chrono::milliseconds floor{320};        // of silence that the kernel confirms; with the time until it is asked, and the kill, under 500 ms
  std::chrono::milliseconds frozen{250};       // seen stopped for this long: job control and debuggers that only glance are forgiven
  std::chrono::milliseconds lost{1000};        // a peer waits in a collective for a rank that has nothing to do
  std::chrono::milliseconds deadline{10'000};  // where nothing is known yet of how long steps take
  bool coarse = false;                         // progress is stamped once a step and not once a layer (GPUs)
};

class RankWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Verdict {
    enum class Kind : std::uint8_t { frozen, stuck, epoch };  // epoch: nobody is to blame, the membership makes no progress
    Kind kind = Kind::epoch;
    std::uint32_t rank = 0;  // meaningless for `epoch`
    std::string why;
    std::chrono::milliseconds silence{};  // for how long it made no sign
  };
  // One process as it is now. `stamps` null: it is not there, or still loads. Who is no rank of the epoch, as a spare, may freeze, and is waited for
  // by nobody.
  struct Seen {
    const RankStamps* stamps = nullptr;
    pid_t pid = -1;
    bool in_epoch = true;
  };
  using StateOf = std::function<std::optional<ProcessState>(pid_t)>;

  explicit RankWatch(WatchLimits limits, StateOf state_of = process_state) : limits_(limits), state_of_(std::move(state_of)) {}

  // One look at all; call it every few hundredths of a second. `epoch` is the membership that computes now, 0 while there is none.
  std::vector<Verdict> look(Clock::time_point now, const std::vector<Seen>& ranks, std::uint64_t epoch);

  // How long a rank may sleep without progress: `floor`; where progress is coarse, 20 times the 99th percentile of its steps if that is more.
  std::chrono::milliseconds patience(const RankStamps& stamps) const;

 private:
  using Milliseconds = std::chrono::milliseconds;
  struct Watched {
    pid_t pid = -1;
    std::uint64_t beats = 0;
    std::uint64_t progress = 0, entered = 0, left = 0, steps = 0, epoch = 0;
    std::uint32_t in_flight = 0;
    Milliseconds silent{}, still{};                     // without a beat; without progress while steps are in flight
    Milliseconds stopped{}, quiet{}, asleep{};          // of that: seen stopped; silent and not runnable; still and not runnable
    Milliseconds idle{};                                // without a step and not runnable, while others wait
    std::optional<std::uint64_t> cpu_ms, still_cpu_ms;  // at the last look, and when it was first seen still
  };

  static bool moved(Watched& watched, const Seen& seen, Milliseconds passed);
  void ask_kernel(Watched& watched, Milliseconds passed) const;
  std::optional<Verdict> frozen(std::uint32_t rank, const RankStamps& stamps) const;
  void note_idle(const std::vector<Seen>& ranks, const std::vector<std::uint32_t>& suspects, Milliseconds passed);
  bool is_still(const Watched& watched, const RankStamps& stamps) const;
  std::optional<Verdict> judge(std::uint32_t rank, const std::vector<Seen>& ranks, std::uint64_t epoch) const;

  WatchLimits limits_;
  StateOf state_of_;
  std::vector<Watched> watched_;
  std::optional<Clock::time_point> last_;
  std::uint64_t epoch_ = 0;  // of the last look
};

}  // namespace althing::actors
