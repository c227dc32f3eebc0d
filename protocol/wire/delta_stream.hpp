// Generated token ids to typed delta events, one token at a time: which message begins with which header, its text, its end. What is malformed is
// mended and never lost (harmony/recovery.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocol/harmony/recovery.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::wire {

class DeltaStream {
 public:
  // The prompt ended in <|start|>assistant.
  explicit DeltaStream(const harmony::Format& format) : parser_(format) {}

  void push(TokenId token, std::vector<DeltaEvent>& out);
  // No more tokens will come; ends an open message.
  void finish(std::vector<DeltaEvent>& out);

  // By harmony::Repair: how often something had to be mended; for metrics.
  const std::array<std::uint32_t, harmony::repair_kinds>& repairs() const { return parser_.repairs(); }

 private:
  void tell(std::vector<DeltaEvent>& out);

  harmony::RecoveringParser parser_;
  std::vector<harmony::RecoveredEvent> events_;  // of the token at hand
  std::uint32_t index_ = 0;                      // of the open or next message
};

}  // namespace althing::protocol::wire
