// Finds the first stop string in text that comes piece by piece. What may be the beginning of one is held until it is decided.
// Of several that match, the one that ends first counts, and of those that end together the longest: what comes behind the end of a match cannot
// change what it is, so pieces do not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace althing::protocol::wire {

class StopMatcher {
 public:
  // Stop strings are valid UTF-8 and not empty. The time of a push grows with their bytes and with the piece's.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Valid UTF-8. Returns what is certain to be before any match, whole characters always. REQUIRES: !matched().
  std::string push(std::string_view piece);
  // No more of this text will come: what was held. The next push begins another text.
  std::string flush();

  // Index of the stop string that was found; the text ends in front of it.
  std::optional<std::uint32_t> matched() const { return matched_; }
  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::uint32_t> matched_;
};

}  // namespace althing::protocol::wire
