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

namespace althing::protocol::wire {

class DeltaLog {
 public:
  // Without a format the deltas hold token ids only; with one, ids as well if `return_tokens`.
  DeltaLog(std::string request_id, const harmony::Format* format, bool return_tokens, std::uint32_t choices = 1);

  // A delta takes no more of a trace than this, about: a frame has a bound. A cut that only routing is the reason of takes half of it at least, or
  // is the choice's last.
  static constexpr std::size_t routing_bytes_max = std::size_t{256} << 10;
  static constexpr std::size_t routing_piece_bytes = routing_bytes_max / 2;

  // Of `choice`, everywhere below. REQUIRES: it is less than the number of choices.
  void push(TokenId token, std::uint32_t choice = 0);
  // What was computed for it, in order. It goes with the next delta of the choice, or makes one when it is too much for one, or the choice has
  // closed.
  void push(StepRouting&& routing, std::uint32_t choice);
  // No more tokens of it will come; what that adds is pending like a token's. Once or more.
  void close(std::uint32_t choice = 0);
  // All of it that is pending becomes the next delta. REQUIRES: pending(choice).
  const ServerMessage& cut(std::uint32_t choice = 0);
  // A Done or ErrorReply gets the last number.
  const ServerMessage& end(ServerMessage last);

  bool pending(std::uint32_t choice = 0) const {
    const Choice& of = choices_[choice];
    return !of.events.empty() || !of.tokens.empty() || of.routing_bytes >= routing_bytes_max || (of.closed && !of.routing.empty());
  }
  std::size_t pending_count(std::uint32_t choice = 0) const { return choices_[choice].count; }  // tokens since its last cut, headers included
  std::size_t pending_bytes() const;                                                            // of all choices, without routing
  bool was_cut(std::uint32_t choice) const { return choices_[choice].was_cut; }
  // messages()[i] has sequence i + 1.
  const std::vector<ServerMessage>& messages() const { return messages_; }
  // By harmony::Repair, of all choices.
  std::array<std::uint32_t, harmony::repair_kinds> repairs() const;

 private:
  // Each choice is a story of its own; only the numbers are shared.
  struct Choice {
    std::optional<DeltaStream> stream;
    std::vector<DeltaEvent> events;
    std::vector<TokenId> tokens;
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
