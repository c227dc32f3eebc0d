// Generated token ids to typed delta events, one token at a time: which message begins with which header, its text, its end. Built on the exact
// Harmony parser. What the parser refuses is not lost: text between messages, and headers that cannot be read, come out as messages without a
// channel.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/harmony/parser.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::wire {

class DeltaStream {
 public:
  // The prompt ended in <|start|>assistant.
  explicit DeltaStream(const harmony::Format& format);

  void push(TokenId token, std::vector<DeltaEvent>& out);
  // No more tokens will come; ends an open message.
  void finish(std::vector<DeltaEvent>& out);

  // How often something had to be recovered; for metrics.
  std::uint32_t repairs() const { return repairs_; }

 private:
  using State = harmony::StreamableParser::State;

  void after_header(std::vector<DeltaEvent>& out);
  void after_content(std::vector<DeltaEvent>& out);
  void unread(std::vector<DeltaEvent>& out);
  void text(std::string piece, std::vector<DeltaEvent>& out);

  harmony::Format format_;
  harmony::StreamableParser parser_;
  std::size_t messages_seen_ = 0;  // of parser_.messages()
  std::uint32_t index_ = 0;        // of the open or next message
  std::size_t sent_bytes_ = 0;     // of the open message's content
  std::vector<TokenId> header_;    // since the header began, or stray tokens between messages
  std::uint32_t repairs_ = 0;
};

}  // namespace althing::protocol::wire
