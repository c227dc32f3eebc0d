// Generated token ids to typed delta events, one token at a time: which message begins with which header, its text, its end. What is malformed in
// Harmony is mended and never lost (harmony/recovery.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/chat/chat_format.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::wire {

class DeltaStream {
 public:
  // The prompt ended where the reply begins.
  explicit DeltaStream(const chat::ChatFormat& format) : parser_(format->reply_parser()) {}

  void push(TokenId token, std::vector<DeltaEvent>& out);
  // No more tokens will come; ends an open message.
  void finish(std::vector<DeltaEvent>& out);

  // How many tokens left a message open that is no answer: one on analysis, or on commentary to a recipient.
  std::uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  // By harmony::Repair: how often something had to be mended; for metrics.
  const std::array<std::uint32_t, harmony::repair_kinds>& repairs() const { return parser_->repairs(); }

 private:
  void tell(std::vector<DeltaEvent>& out);

  std::unique_ptr<chat::ReplyParser> parser_;
  std::vector<harmony::RecoveredEvent> events_;  // of the token at hand
  std::uint32_t index_ = 0;                      // of the open or next message
  bool reasons_ = false;                         // the open message is no answer
  std::uint32_t reasoning_tokens_ = 0;
};

}  // namespace althing::protocol::wire
