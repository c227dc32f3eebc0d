// From a submit to the conversation that is rendered. What the client wrote stays as it is; only what it left out is added: a system message, and the
// place where functions are declared. Names of functions end up inside of the prompt's own grammar, so they are checked here once more and harder
// than on the wire. Nothing is dropped silently: what cannot be placed is an error that names it.
#include "protocol/wire/conversation.hpp"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

namespace althing::protocol::wire {
namespace {

using harmony::Conversation;
using harmony::DeveloperContent;
using harmony::Message;
using harmony::Role;

constexpr std::string_view functions_key = "functions";

Error invalid(std::string message, std::string field) { return Error{ErrorCode::invalid_argument, std::move(message), std::move(field)}; }

bool is_date(const std::string& date) {
  if (date.size() != 10) return false;
  for (std::size_t i = 0; i < date.size(); ++i)
    if (i == 4 || i == 7 ? date[i] != '-' : date[i] < '0' || date[i] > '9') return false;
  return true;
}

// The name becomes part of a TypeScript-like declaration and of the header functions.NAME: nothing in it may end either.
Status check_name(const std::string& name, const std::string& field) {
  if (name.empty()) return invalid(field + " is empty; the model calls a function by its name", field);
  for (const char c : name)
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.')
      return invalid(field + " is \"" + name + "\"; use letters, digits, _, - and . only", field);
  return Ok{};
}

Status check_tools(const std::vector<harmony::Function>& tools, const std::vector<harmony::Function>& present) {
  std::vector<std::string_view> names;
  for (const auto& function : present) names.emplace_back(function.name);
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (auto status = check_name(tools[i].name, "tools[" + std::to_string(i) + "].name"); !status) return status;
    names.emplace_back(tools[i].name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return Ok{};
  return invalid("the function " + std::string(*twice) + " is declared twice; give each function its own name", "tools");
}

// The developer content that takes the tools: that of the first developer message. A developer message of plain text becomes instructions, so that
// the tools stand under a heading of their own; without any, one is put after the system message.
DeveloperContent& developer_content(Conversation& conversation) {
  auto& messages = conversation.messages;
  auto found = std::find_if(messages.begin(), messages.end(), [](const Message& m) { return m.role == Role::developer; });
  if (found == messages.end()) {
    const auto system = std::find_if(messages.begin(), messages.end(), [](const Message& m) { return m.role == Role::system; });
    Message message;
    message.role = Role::developer;
    message.content.emplace_back(DeveloperContent{});
    found = messages.insert(system == messages.end() ? messages.begin() : system + 1, std::move(message));
  }
  for (auto& part : found->content)
    if (auto* content = std::get_if<DeveloperContent>(&part)) return *content;
  DeveloperContent content;
  for (const auto& part : found->content)
    if (const auto* text = std::get_if<harmony::TextContent>(&part)) content.instructions = content.instructions.value_or("") + text->text;
  found->content.assign(1, std::move(content));
  return std::get<DeveloperContent>(found->content.front());
}

Status add_tools(Conversation& conversation, const std::vector<harmony::Function>& tools) {
  DeveloperContent& content = developer_content(conversation);
  auto space = std::find_if(content.tools.begin(), content.tools.end(), [](const auto& entry) { return entry.first == functions_key; });
  if (auto status = check_tools(tools, space == content.tools.end() ? std::vector<harmony::Function>{} : space->second.functions); !status)
    return status;
  if (space == content.tools.end()) {
    const auto after = std::find_if(content.tools.begin(), content.tools.end(), [](const auto& entry) { return entry.first > functions_key; });
    space = content.tools.insert(after, {std::string(functions_key), harmony::ToolNamespace{std::string(functions_key), std::nullopt, {}}});
  }
  space->second.functions.insert(space->second.functions.end(), tools.begin(), tools.end());
  return Ok{};
}

}  // namespace

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[16] = "";
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

Result<Conversation> conversation_of(const Submit& submit, const std::string& date) {
  if (submit.messages.empty()) return invalid("messages is empty; send at least one message", "messages");
  if (!date.empty() && !is_date(date)) return invalid("the date is \"" + date + "\"; it must be YYYY-MM-DD", "date");
  Conversation conversation{submit.messages};
  const bool has_system = std::any_of(submit.messages.begin(), submit.messages.end(), [](const Message& m) { return m.role == Role::system; });
  if (has_system && submit.reasoning_effort)
    return invalid("reasoning_effort goes into the default system message, but the conversation has its own; set the effort there",
                   "reasoning_effort");
  if (!has_system) {
    harmony::SystemContent content;
    if (submit.reasoning_effort) content.reasoning_effort = submit.reasoning_effort;
    if (!date.empty()) content.conversation_start_date = date;
    Message system;
    system.role = Role::system;
    system.content.emplace_back(std::move(content));
    conversation.messages.insert(conversation.messages.begin(), std::move(system));
  }
  if (!submit.tools.empty())
    if (auto status = add_tools(conversation, submit.tools); !status) return std::move(status).error();
  return conversation;
}

}  // namespace althing::protocol::wire
