// How long completions became, lately, and so how long those that run may still become: of a sequence that has said more than most did, more is
// expected than of one that begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace althing::scheduler {

class LengthHistory {
 public:
  static constexpr std::size_t most = 128;  // are remembered

  // Fewer say nothing.
  bool known() const { return sorted_.size() >= 16; }
  void note(std::uint32_t tokens) {
    if (lengths_.size() == most) {
      sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), lengths_.front()));
      lengths_.pop_front();
    }
    lengths_.push_back(tokens);
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), tokens), tokens);
  }
  // Tokens that may still come of one that has said so many and may say at most `left` more: the middle one of those that became longer says it, and
  // where none did, it may be half through.
  std::uint32_t expected(std::uint32_t said, std::uint32_t left) const {
    const auto longer = std::upper_bound(sorted_.begin(), sorted_.end(), said);
    return std::min(left, longer == sorted_.end() ? said : longer[(sorted_.end() - longer) / 2] - said);
  }

 private:
  std::deque<std::uint32_t> lengths_;  // oldest first
  std::vector<std::uint32_t> sorted_;  // the same
};

}  // namespace althing::scheduler
