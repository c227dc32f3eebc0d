// See the header.
#include "protocol/openai/chat_reply.hpp"

#include <utility>

namespace althing::protocol::openai {

void ChatReply::add(std::string& to, bool& said, const std::string& text) {
  if (first_ && said) to += '\n';
  to += text;
  said = true;
  first_ = false;
}

void ChatReply::push(const wire::DeltaEvent& event) {
  if (const auto* started = std::get_if<wire::MessageStarted>(&event)) {
    kind_ = kind_of(*started, declared_, calls_wanted_, only_final_);
    first_ = true;
    if (kind_ == MessageKind::call) piece_.tool_calls.push_back({calls_++, function_of(started->recipient), ""});
    return;
  }
  const auto* text = std::get_if<wire::Text>(&event);
  if (text == nullptr) return;
  if (kind_ == MessageKind::reasoning) add(piece_.reasoning, reasoned_, text->text);
  if (kind_ == MessageKind::content) add(piece_.content, spoke_, text->text);
  if (kind_ != MessageKind::call) return;
  if (piece_.tool_calls.empty() || piece_.tool_calls.back().index + 1 != calls_) piece_.tool_calls.push_back({calls_ - 1, std::nullopt, ""});
  piece_.tool_calls.back().arguments += text->text;
}

ReplyPiece ChatReply::take() { return std::exchange(piece_, {}); }

std::string ChatReply::finish_reason(FinishReason reason) const {
  if (reason == FinishReason::length) return "length";
  return has_tool_calls() ? "tool_calls" : "stop";
}

}  // namespace althing::protocol::openai
