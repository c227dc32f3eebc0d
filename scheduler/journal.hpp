// The journal's text: one line an event, so that the same events give the same effects again on another machine. A journal is its header line,
// one config line from which the core is built, and event lines, each followed by a line of what it led to (journal_effects.hpp); writing files (mode
// 0600, caps, rotation) is the owner's business.
// Invariant: from_line(to_line(event)) is the event again, to the last bit (floats are written as their bits), and a line that is cut short,
// out of order or out of range is refused with the place.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/core.hpp"

namespace althing::scheduler {

// With `redacted`, prompt and drawn token ids are left out (a prompt is written as its count), because they are what users wrote and read.
// The rest of the journal stays useful to look at, but such a journal can NOT be replayed: from_line refuses it as unsupported.
enum class JournalText { ids, redacted };

// The first line of a journal; it names the version of the format. No line ends in a newline here.
std::string journal_header();
// Version when the journal was written in another format, corrupt when it is no journal at all.
Status check_journal_header(std::string_view line);

// The second line: what Core::create needs. Limits that the core does not read are left out and come back as their defaults.
std::string to_config_line(const CoreConfig& config);
Result<CoreConfig> from_config_line(std::string_view line);

std::string to_line(const Event& event, JournalText text = JournalText::ids);
Result<Event> from_line(std::string_view line);

}  // namespace althing::scheduler
