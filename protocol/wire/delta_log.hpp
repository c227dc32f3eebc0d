// Everything that one stream says to its client, numbered 1, 2, 3 …: deltas made of tokens, then the end. Pure: the same calls in the same order give
// the same messages, so whoever knows the tokens and where deltas were cut between them can make the stream again, whatever timing cut them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "protocol/wire/delta_stream.hpp"
#include "protocol/wire/stop_gate.hpp"

namespace althing::protocol::wire {

// Text that ends a choice. The tokenizer is for streams without a format, whose text nobody else makes.
struct Stops {
  std::vector<std::string> strings;
  std::shared_ptr<const Tokenizer> tokenizer;
};

class DeltaLog {
 public:
  // Without a format the deltas hold token ids only; with one, ids as well if `return_tokens`. Ids of a stop string, and of what is held because it
  // may become one, are in no delta.
  DeltaLog(std::string request_id, const std::optional<chat::ChatFormat>& format, bool return_tokens, std::uint32_t choices = 1,
           const Stops& stops = {});

  // A delta takes no more of a trace than this, about: a frame has a bound. A cut that only routing is the reason of takes half of it at least, or
  // is the choice's last.
  static constexpr std::size_t routing_bytes_max = std::size_t{256} << 10;
  static constexpr std::size_t routing_piece_bytes = routing_bytes_max / 2;

  // Of `choice`, everywhere below. REQUIRES: it is less than the number of choices.
  void push(TokenId token, std::uint32_t choice = 0, std::optional<TokenLogprobs> logprobs = std::nullopt);
  // What was computed for it, in order. It goes with the next delta of the choice, or makes one when it is too much for one, or the choice has
  // closed.
  void push(StepRouting&& routing, std::uint32_t choice);
  // Index of the stop string that it came to: its tokens after that change nothing, and it is to be closed.
  std::optional<std::uint32_t> stopped(std::uint32_t choice = 0) const {
    return choices_[choice].gate ? choices_[choice].gate->stopped() : std::nullopt;
  }
  // No more tokens of it will come; what that adds is pending like a token's. Once or more.
  void close(std::uint32_t choice = 0);
  // All of it that is pending becomes the next delta. REQUIRES: pending(choice).
  const ServerMessage& cut(std::uint32_t choice = 0);
  // A Done or ErrorReply gets the last number.
  const ServerMessage& end(ServerMessage last);

  bool pending(std::uint32_t choice = 0) const {
    const Choice& of = choices_[choice];
    const Heard& heard = of.heard;
    return !heard.events.empty() || !heard.tokens.empty() || !heard.logprobs.empty() || of.routing_bytes >= routing_bytes_max ||
           (of.closed && !of.routing.empty());
  }
  std::size_t pending_count(std::uint32_t choice = 0) const { return choices_[choice].count; }  // tokens since its last cut, headers included
  std::size_t pending_bytes() const;                                                            // of all choices, without routing
  bool was_cut(std::uint32_t choice) const { return choices_[choice].was_cut; }
  // messages()[i] has sequence i + 1.
  const std::vector<ServerMessage>& messages() const { return messages_; }
  std::uint32_t reasoning_tokens() const;  // of all choices; see DeltaStream
  // By harmony::Repair, of all choices.
  std::array<std::uint32_t, harmony::repair_kinds> repairs() const;

 private:
  // Each choice is a story of its own; only the numbers are shared.
  struct Choice {
    std::optional<DeltaStream> stream;
    std::optional<StopGate> gate;  // between the stream and what is heard of it; none without stop strings
    Heard heard;                   // pending
    std::size_t count = 0;
    bool was_cut = false;
    bool closed = false;
    std::deque<StepRouting> routing;
    std::size_t routing_bytes = 0;
  };

  std::string request_id_;
  bool return_tokens_;
  std::vector<Choice> choices_;
  std::vector<ServerMessage> messages_;
};

}  // namespace althing::protocol::wire
