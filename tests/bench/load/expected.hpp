// What a stream of the synthetic engine must say, and a check that it said that: byte by byte, in order, to the end, once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpu/synthetic_script.hpp"
#include "protocol/harmony/format.hpp"

namespace althing::load {

struct Speech {
  gpu::SyntheticScript script;
  protocol::harmony::Format format;

  // The text of message 0 (the thought) or 1 (the answer) of the reply to a conversation.
  std::string text(std::uint64_t seed, std::uint32_t message) const;
  std::uint32_t tokens(std::uint64_t seed) const { return static_cast<std::uint32_t>(script.reply(seed).size()); }
};

// Streams of one run, counted; the first failure is kept in words.
struct Tally {
  std::uint32_t asked = 0, accepted = 0, whole = 0, failed = 0;
  std::uint32_t open_most = 0;  // accepted and not ended, at a time
  std::uint64_t tokens = 0;     // of whole streams
  std::string first_failure;

  std::uint32_t open() const { return accepted - whole - failed_open; }
  std::uint32_t failed_open = 0;  // of the failed, those that had been accepted
  void accept() {
    ++accepted;
    if (open() > open_most) open_most = open();
  }
  void fail(bool was_accepted, const std::string& why) {
    ++failed;
    if (was_accepted) ++failed_open;
    if (first_failure.empty()) first_failure = why;
  }
  bool over() const { return whole + failed == asked; }
};

// One stream as it comes.
class Check {
 public:
  explicit Check(const Speech& speech, std::uint64_t seed) : texts_{speech.text(seed, 0), speech.text(seed, 1)}, tokens_(speech.tokens(seed)) {}

  // More of a message's text. False when it is not what must come here.
  bool hear(std::uint32_t message, std::string_view text) {
    if (message > 1 || (message == 1 && at_[0] != texts_[0].size())) return false;
    if (std::string_view(texts_[message]).substr(at_[message], text.size()) != text) return false;
    at_[message] += text.size();
    return true;
  }
  // Whether this is where it must end, with so many tokens.
  bool whole(std::uint32_t tokens) const { return at_[0] == texts_[0].size() && at_[1] == texts_[1].size() && tokens == tokens_; }

 private:
  std::array<std::string, 2> texts_;
  std::array<std::size_t, 2> at_{};
  std::uint32_t tokens_;
};

}  // namespace althing::load
