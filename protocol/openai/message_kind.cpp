// See the header.
#include "protocol/openai/message_kind.hpp"

#include <string_view>

namespace althing::protocol::openai {
namespace {

constexpr std::string_view function_prefix = "functions.";

bool is_builtin(std::string_view recipient) {
  for (const std::string_view tool : {"python", "browser", "container"})
    if (recipient == tool || (recipient.starts_with(tool) && recipient[tool.size()] == '.')) return true;
  return false;
}

}  // namespace

std::string function_of(const std::string& recipient) {
  return recipient.starts_with(function_prefix) ? recipient.substr(function_prefix.size()) : recipient;
}

MessageKind kind_of(const wire::MessageStarted& message, const std::set<std::string>& declared, bool calls_wanted, bool only_final) {
  if (message.role != harmony::Role::assistant) return MessageKind::nothing;
  if (!message.recipient.empty() && message.recipient != "assistant") {
    if (is_builtin(message.recipient) && !declared.contains(message.recipient)) return MessageKind::nothing;
    if (calls_wanted) return MessageKind::call;
    return only_final ? MessageKind::reasoning : MessageKind::content;
  }
  if (only_final) return message.channel == "final" ? MessageKind::content : MessageKind::reasoning;
  return message.channel == "analysis" ? MessageKind::reasoning : MessageKind::content;
}

}  // namespace althing::protocol::openai
