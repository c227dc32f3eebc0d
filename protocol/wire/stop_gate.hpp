// Between what a choice says and what its client hears, where stop strings were asked for. Visible text is that of messages which are neither
// analysis nor meant for a tool; of a stream of token ids it is all text. Text that may be the beginning of a stop string waits here, and with it the
// tokens that it came from; once a stop string is whole, it and all that follows is nobody's. A match lies within one message. Pure: the same tokens
// open and close it the same way, whatever deltas they are cut into. Raw tokens come without text; but where a match begins within a token, which
// cannot be cut, the text of it in front of the match comes as the only event of the choice.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/tokenizer/detokenizer.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/stop_matcher.hpp"

namespace althing::protocol::wire {

// What goes into deltas.
struct Heard {
  std::vector<DeltaEvent> events;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;
};

// A drawn token, and its logprobs if they were asked for.
struct SaidToken {
  TokenId token = 0;
  std::optional<TokenLogprobs> logprobs;
};

class StopGate {
 public:
  // `raw`: tokens come without events, and their text is looked at here.
  StopGate(std::vector<std::string> stops, std::shared_ptr<const Tokenizer> tokenizer, bool raw);

  // A token and the events that it led to; `events` is empty afterwards. After a match nothing comes through.
  void push(SaidToken token, std::vector<DeltaEvent>& events, Heard& to);
  // No more tokens will come; `events` is how that ends the open message. After a match the message that it was found in ends where the match began.
  void close(std::vector<DeltaEvent>& events, Heard& to);

  // Index of the stop string that ended the choice.
  std::optional<std::uint32_t> stopped() const { return matcher_.matched(); }

 private:
  static constexpr std::uint64_t undecided = std::numeric_limits<std::uint64_t>::max();
  struct Waiting {
    SaidToken token;
    std::uint64_t end = undecided;  // of its visible text, in bytes since the begin; undecided: it ends within a character
  };

  void hear(std::vector<DeltaEvent>& events, Heard& to);
  void see(const std::string& piece, std::uint32_t index, Heard& to);
  void flush(std::uint32_t index, Heard& to);
  void settle(std::uint64_t end);
  void let_through(std::uint64_t text, Heard& to);
  bool is_text(TokenId token) const;

  StopMatcher matcher_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool raw_;
  Detokenizer text_;        // which tokens end within a character; of raw tokens, all of the text
  bool visible_ = false;    // the open message is
  std::uint32_t open_ = 0;  // … and which it is
  std::uint64_t seen_ = 0;  // bytes of visible text so far
  std::deque<Waiting> waiting_;
  std::string untold_;  // of raw tokens: text that is certain, behind that of the last token that went through
  bool ended_ = false;  // after a match: the message has
};

// Appends to the text of the message that `events` ends with, if it is that one.
void append_text(std::vector<DeltaEvent>& events, std::uint32_t index, std::string text);

}  // namespace althing::protocol::wire
