// Sequence numbers of one stream: which message is next, which was here before, and when something between is missing. Pure; what comes out in order
// is exactly 1, 2, 3 … whatever comes in.
#pragma once

#include <algorithm>
#include <cstdint>

namespace althing::protocol {

class StreamOrder {
 public:
  enum class Verdict : std::uint8_t {
    deliver,  // it is the next one
    ignore,   // it was here before, or it was sent before the server heard our resume
    resume,   // something is missing: ask for everything after last()
    broken,   // asking has not helped resume_attempts_max times
  };
  static constexpr int resume_attempts_max = 3;

  std::uint64_t last() const { return last_; }

  Verdict on(std::uint64_t sequence) {
    if (sequence <= last_) return Verdict::ignore;
    if (sequence == last_ + 1) {
      *this = StreamOrder(sequence);
      return Verdict::deliver;
    }
    // Numbers go up until the server hears the resume. One that does not means that it has begun to send again, with the gap still there.
    const bool in_flight = resuming_ && sequence > highest_;
    highest_ = std::max(highest_, sequence);
    return in_flight ? Verdict::ignore : ask();
  }

  // A frame that could not be read may have been one of this stream's.
  Verdict on_unreadable() { return ask(); }

 private:
  explicit StreamOrder(std::uint64_t last) : last_(last) {}

  Verdict ask() {
    resuming_ = true;
    return ++attempts_ > resume_attempts_max ? Verdict::broken : Verdict::resume;
  }

  std::uint64_t last_ = 0, highest_ = 0;
  bool resuming_ = false;
  int attempts_ = 0;

 public:
  StreamOrder() = default;
};

}  // namespace althing::protocol
