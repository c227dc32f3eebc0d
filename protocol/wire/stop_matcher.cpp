// See the header. Stop strings are few and short, so each is looked for by itself.
#include "protocol/wire/stop_matcher.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::wire {
namespace {

// Bytes at the end of `text` that `stop` begins with, all of `stop` excluded. A stop string begins and pieces end with whole characters, so this is
// no part of one either.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  return 0;
}

}  // namespace

std::string StopMatcher::push(std::string_view piece) {
  held_ += piece;
  // No match ends in what was held before, or it would have been found then.
  std::size_t begin = 0, end = std::string::npos;
  for (std::uint32_t i = 0; i < stops_.size(); ++i) {
    const std::size_t at = held_.find(stops_[i]);
    if (at == std::string::npos) continue;
    const std::size_t behind = at + stops_[i].size();
    if (behind < end || (behind == end && at < begin)) matched_ = i, begin = at, end = behind;
  }
  if (matched_) {
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  std::size_t kept = 0;
  for (const std::string& stop : stops_) kept = std::max(kept, begun(held_, stop));
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace althing::protocol::wire
