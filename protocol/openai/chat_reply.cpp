// See the header.
#include "protocol/openai/chat_reply.hpp"

#include <utility>

namespace althing::protocol::openai {
namespace {

constexpr std::string_view function_prefix = "functions.";

std::string function_of(const std::string& recipient) {
  return recipient.starts_with(function_prefix) ? recipient.substr(function_prefix.size()) : recipient;
}
bool is_builtin(std::string_view recipient) {
  for (const std::string_view tool : {"python", "browser", "container"})
    if (recipient == tool || (recipient.starts_with(tool) && recipient[tool.size()] == '.')) return true;
  return false;
}

}  // namespace

ChatReply::Kind ChatReply::kind_of(const wire::MessageStarted& message) const {
  if (message.role != harmony::Role::assistant) return Kind::nothing;
  if (!message.recipient.empty() && message.recipient != "assistant")
    return is_builtin(message.recipient) && !declared_.contains(message.recipient) ? Kind::nothing : Kind::call;
  return message.channel == "analysis" ? Kind::reasoning : Kind::content;
}

void ChatReply::add(std::string& to, bool& said, const std::string& text) {
  if (first_ && said) to += '\n';
  to += text;
  said = true;
  first_ = false;
}

void ChatReply::push(const wire::DeltaEvent& event) {
  if (const auto* started = std::get_if<wire::MessageStarted>(&event)) {
    kind_ = kind_of(*started);
    first_ = true;
    if (kind_ == Kind::call) piece_.tool_calls.push_back({calls_++, function_of(started->recipient), ""});
    return;
  }
  const auto* text = std::get_if<wire::Text>(&event);
  if (text == nullptr) return;
  if (kind_ == Kind::reasoning) add(piece_.reasoning, reasoned_, text->text);
  if (kind_ == Kind::content) add(piece_.content, spoke_, text->text);
  if (kind_ != Kind::call) return;
  if (piece_.tool_calls.empty() || piece_.tool_calls.back().index + 1 != calls_) piece_.tool_calls.push_back({calls_ - 1, std::nullopt, ""});
  piece_.tool_calls.back().arguments += text->text;
}

ReplyPiece ChatReply::take() { return std::exchange(piece_, {}); }

std::string ChatReply::finish_reason(FinishReason reason) const {
  if (reason == FinishReason::length) return "length";
  return has_tool_calls() ? "tool_calls" : "stop";
}

}  // namespace althing::protocol::openai
