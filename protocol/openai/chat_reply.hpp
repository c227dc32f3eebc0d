// What a model generated, as an answer of OpenAI's chat completions: reasoning, content and tool calls, piece by piece and as a whole. Pieces
// concatenate to the whole, however the tokens were cut.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/openai/message_kind.hpp"

namespace althing::protocol::openai {

struct ToolCallPiece {
  std::uint32_t index = 0;
  std::optional<std::string> name;  // in the first piece of a call
  std::string arguments;
};
struct ReplyPiece {
  std::string reasoning, content;
  std::vector<ToolCallPiece> tool_calls;  // ascending by index, one a call

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// Which message is what: message_kind.hpp. Messages of one kind are joined by a line break.
class ChatReply {
 public:
  // As kind_of's.
  explicit ChatReply(std::set<std::string> declared = {}, bool calls_wanted = true, bool only_final = false)
      : declared_(std::move(declared)), calls_wanted_(calls_wanted), only_final_(only_final) {}

  void push(const wire::DeltaEvent& event);
  // What has come since the last call.
  ReplyPiece take();

  bool has_tool_calls() const { return calls_ > 0; }
  // OpenAI's finish_reason: a completed call makes `stop` a `tool_calls`; a call that was cut short does not.
  std::string finish_reason(FinishReason reason) const;

 private:
  void add(std::string& to, bool& said, const std::string& text);

  std::set<std::string> declared_;
  bool calls_wanted_, only_final_;
  MessageKind kind_ = MessageKind::nothing;  // of the open message
  bool first_ = false;                       // nothing of it has come yet
  bool reasoned_ = false, spoke_ = false;
  std::uint32_t calls_ = 0;
  ReplyPiece piece_;
};

}  // namespace althing::protocol::openai
