// A journal lived once more: its events go to a core built from its config line, and what that core orders is held against what the journal says was
// ordered then. Pure: whoever reads files gives it line after line. Invariant: it reports the first event whose effects differ; whatever differs
// behind it follows from that one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/core.hpp"
#include "scheduler/journal_effects.hpp"

namespace althing::scheduler {

class Replay {
 public:
  // Where effects are not what they were.
  struct Difference {
    EffectsDigest recorded, replayed;
  };

  // The next file of the journal begins. A journal that its file was too small for goes on in another.
  void begin_file() { expected_ = Expected::header; }
  // The next line of the file, without its newline. Errors: what the line is not; `unsupported` for a redacted journal, and for a file that goes on
  // from one that was not replayed before it. Nothing may follow an error.
  Status line(std::string_view text);
  // There is no further line. The server may have died before it wrote down what its last event led to: that event is compared with nothing.
  void end() { undecided_ = false; }

  // What the newest event led to. Whether that differs from what the journal says is known once the line behind it has been read, since that says it;
  // then nothing further is replayed.
  const std::vector<Effect>& effects() const { return effects_; }
  const std::optional<Difference>& difference() const { return difference_; }

  std::uint64_t events() const { return events_; }
  std::uint64_t compared() const { return compared_; }  // events, with what the journal says
  // Null before the config line.
  const Core* core() const { return core_.get(); }

 private:
  enum class Expected : std::uint8_t { header, config, first_event, event };

  Status take_config(std::string_view text);
  Status take_part(std::string_view text);
  Status take_event(std::string_view text);
  Status take_effects(std::string_view text);
  void compare(const EffectsDigest& recorded);

  Expected expected_ = Expected::header;
  std::unique_ptr<Core> core_;
  std::string config_;       // the line
  std::uint32_t parts_ = 0;  // files begun
  std::vector<Effect> effects_;
  bool undecided_ = false;  // the newest event's effects are not compared yet
  std::optional<Difference> difference_;
  std::uint64_t events_ = 0, compared_ = 0;
};

}  // namespace althing::scheduler
