// See the header.
#include "protocol/openai/chat_messages.hpp"

#include <map>
#include <string>
#include <utility>

#include "protocol/openai/message_parts.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using namespace harmony;

class Converter {
 public:
  Status add(const Json& message, const Place& at) {
    if (!message.is_object()) return at.invalid("is not an object");
    const auto role = text_member(message, "role", at);
    if (!role) return role.error();
    if (*role == "assistant") return add_assistant(message, at);
    if (*role == "tool") return add_result(message, at);
    const auto parts = texts_of(message.value("content", Json()), at / "content", OtherParts::refused);
    if (!parts) return parts.error();
    Message next;
    if (*role == "user") {
      next.role = Role::user;
      for (const std::string& part : *parts) next.content.emplace_back(TextContent{part});
    } else if (*role == "system" || *role == "developer") {
      next.role = Role::developer;
      std::string text;
      for (const std::string& part : *parts) text += part;
      next.content.emplace_back(DeveloperContent{std::move(text), {}});
    } else {
      return (at / "role").invalid("is '" + *role + "'; use system, developer, user, assistant or tool");
    }
    messages_.push_back(std::move(next));
    return Ok{};
  }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Status add_assistant(const Json& message, const Place& at) {
    const auto text = text_of_parts(message.value("content", Json()), at / "content", OtherParts::refused);
    if (!text) return text.error();
    const std::string& content = *text;
    auto reasoning = text_member(message, "reasoning", at);
    if (reasoning && reasoning->empty()) reasoning = text_member(message, "reasoning_content", at);
    if (!reasoning) return reasoning.error();
    const Json calls = message.value("tool_calls", Json());
    if (!calls.is_null() && !calls.is_array()) return (at / "tool_calls").invalid("is not a list");
    const bool has_calls = calls.is_array() && !calls.empty();
    if (has_calls && !content.empty()) messages_.push_back(assistant_message("commentary", content));
    if (!reasoning->empty()) messages_.push_back(assistant_message("analysis", *reasoning));
    if (!has_calls && !content.empty()) messages_.push_back(assistant_message("final", content));
    for (std::size_t i = 0; has_calls && i < calls.size(); ++i)
      if (auto status = add_call(calls[i], (at / "tool_calls")[i]); !status) return status;
    return Ok{};
  }

  Status add_call(const Json& call, const Place& at) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return at.invalid("is not a call with a function");
    const auto name = text_member(call["function"], "name", at / "function"), arguments = text_member(call["function"], "arguments", at / "function"),
               id = text_member(call, "id", at);
    for (const auto* member : {&name, &arguments, &id})
      if (!*member) return member->error();
    if (name->empty()) return (at / "function" / "name").invalid("is missing");
    if (!id->empty()) functions_[*id] = *name;
    messages_.push_back(call_message(*name, *arguments));
    return Ok{};
  }

  Status add_result(const Json& message, const Place& at) {
    const auto text = text_of_parts(message.value("content", Json()), at / "content", OtherParts::left_out);
    if (!text) return text.error();
    const auto id = text_member(message, "tool_call_id", at);
    if (!id) return id.error();
    const auto function = functions_.find(*id);
    if (function == functions_.end())
      return (at / "tool_call_id").invalid("is '" + *id + "', which no tool call before it has; send the assistant's message with the call as well");
    messages_.push_back(result_message(function->second, *text));
    return Ok{};
  }

  std::vector<Message> messages_;
  std::map<std::string, std::string> functions_;  // names by id of the call
};

}  // namespace

Result<std::vector<Message>> messages_from_chat(const Json& messages) {
  const Place at{"messages"};
  if (!messages.is_array()) return at.invalid("is not a list");
  Converter converter;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (auto status = converter.add(messages[i], at[i]); !status) return status.error();
  return converter.take();
}

}  // namespace althing::protocol::openai
