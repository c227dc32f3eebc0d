// The story of each fault, from the last sign of life to the streams' next tokens, told once and in one line: rank, cause, epoch, and how long each
// phase took. Faults that overlap are told each for itself and end together, with the first membership that serves again.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/membership.hpp"

namespace althing::actors {

// detect: last sign of life to the verdict. agree: to the next membership's announcement. weights: to the last rank's being loaded, where ranks had
// to load again or to make themselves into something else. join: to a complete membership. recompute: to the first token of a stream that was
// interrupted. resume: to the next token of the last of them.
enum class RecoveryPhase : std::uint8_t { detect, agree, weights, join, recompute, resume };
inline constexpr int recovery_phase_count = static_cast<int>(RecoveryPhase::resume) + 1;
constexpr std::string_view name_of(RecoveryPhase phase) {
  constexpr std::string_view names[recovery_phase_count] = {"detect", "agree", "weights", "join", "recompute", "resume"};
  return names[static_cast<int>(phase)];
}

class RecoveryLog {
 public:
  using Clock = std::chrono::steady_clock;
  struct Fault {
    std::optional<std::uint32_t> rank;  // none: nobody was to blame
    std::string cause;                  // exit, frozen, stuck, stalled
    std::string how;                    // for people
    std::uint64_t epoch = 0;            // the membership that it ended
    RecoveredBy by = RecoveredBy::epoch;
    std::array<double, recovery_phase_count> seconds{};

    double total() const;
  };

  // A verdict is being carried out: the death that follows is its consequence, and no fault of its own.
  void condemned(std::uint32_t rank, const std::string& cause, const std::string& how, Clock::time_point last_sign);
  // A rank is gone. Its cause is `exit` unless it was condemned. Returns the cause.
  std::string lost(std::uint32_t rank, const std::string& how, std::uint64_t epoch, Clock::time_point last_sign, Clock::time_point now);
  // The membership as a whole makes no progress.
  void stalled(const std::string& how, std::uint64_t epoch, Clock::time_point last_sign, Clock::time_point now);
  // The next membership; it ends the faults that are open, unless others follow.
  void announced(RecoveredBy by, Clock::time_point now);
  // A rank of the announced membership has loaded.
  void loaded(Clock::time_point now);
  void ready(Clock::time_point now);
  // What happened since, when the core says that streams go on: the faults that this ends, with all their times.
  std::vector<Fault> resumed(std::chrono::milliseconds first_token, std::chrono::milliseconds last_token);

  bool empty() const { return open_.empty(); }

 private:
  struct Open {
    Fault fault;
    Clock::time_point last_sign, noticed;
    std::optional<Clock::time_point> announced;
  };
  struct Condemned {
    std::uint32_t rank = 0;
    std::string cause, how;
    Clock::time_point last_sign;
  };

  std::vector<Open> open_;
  std::vector<Condemned> condemned_;
  std::optional<Clock::time_point> loaded_, ready_;
};

}  // namespace althing::actors
