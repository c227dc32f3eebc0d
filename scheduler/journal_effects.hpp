// What an event led to, as text: one line an effect for people, and one line for the journal behind each event that had effects, with their number
// and a digest of these lines. So whoever replays a journal can compare what happens now with what happened then, event by event, and the journal is
// not much longer for it. Invariant: whatever the core decides is in the text (how a row draws is what its submission says), so equal digests are
// equal decisions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/events.hpp"

namespace althing::scheduler {

// One line, no newline in it. It holds token ids: what users wrote and read.
std::string to_text(const Effect& effect);

struct EffectsDigest {
  std::uint64_t count = 0;
  std::uint64_t hash = 0;  // of the texts in their order

  friend bool operator==(const EffectsDigest&, const EffectsDigest&) = default;
};
EffectsDigest digest_of(std::span<const Effect> effects);

// The journal's line behind an event's. Not for redacted journals: who can guess tokens can try them on a digest.
std::string to_effects_line(const EffectsDigest& digest);
bool is_effects_line(std::string_view line);
Result<EffectsDigest> from_effects_line(std::string_view line);

// Stands behind the config line of a journal's second file and those after it: the core had lived before. `part` is 2 or more.
std::string to_continued_line(std::uint32_t part);
bool is_continued_line(std::string_view line);
Result<std::uint32_t> from_continued_line(std::string_view line);

}  // namespace althing::scheduler
