// See the header.
#include "protocol/openai/chat_messages.hpp"

#include <map>
#include <string>
#include <utility>

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using namespace harmony;

// A member's place in the request, for errors.
struct At {
  std::string path;
  At operator/(const std::string& member) const { return {path + "." + member}; }
  At operator[](std::size_t index) const { return {path + "[" + std::to_string(index) + "]"}; }
  Error invalid(const std::string& what) const { return {ErrorCode::invalid_argument, path + " " + what, path}; }
};

// The texts of a content: a string, or parts. Parts that are no text are left out of tools' results, and refused elsewhere.
Result<std::vector<std::string>> texts(const Json& content, const At& at, bool texts_only) {
  if (content.is_null()) return std::vector<std::string>{};
  if (content.is_string()) return std::vector<std::string>{content.get<std::string>()};
  if (!content.is_array()) return at.invalid("is neither a string nor a list of parts");
  std::vector<std::string> all;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return at[i].invalid("is not a part with a type");
    const std::string type = part["type"];
    if (type != "text" && type != "input_text" && type != "output_text") {
      if (texts_only) continue;
      return Error{ErrorCode::unsupported, at[i].path + " is of type '" + type + "'; this model reads text only", at[i].path};
    }
    if (!part.contains("text") || !part["text"].is_string()) return at[i].invalid("has no text");
    all.push_back(part["text"]);
  }
  return all;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

// A member that is a string or absent; null counts as absent.
Result<std::string> text_of(const Json& object, const std::string& member, const At& at) {
  const auto found = object.find(member);
  if (found == object.end() || found->is_null()) return std::string();
  if (!found->is_string()) return (at / member).invalid("is not a string");
  return found->get<std::string>();
}

Message assistant(const std::string& channel, std::string text) {
  Message message;
  message.role = Role::assistant;
  message.channel = channel;
  message.content.push_back(TextContent{std::move(text)});
  return message;
}

class Converter {
 public:
  Status add(const Json& message, const At& at) {
    if (!message.is_object()) return at.invalid("is not an object");
    const auto role = text_of(message, "role", at);
    if (!role) return role.error();
    if (*role == "assistant") return add_assistant(message, at);
    if (*role == "tool") return add_result(message, at);
    const auto parts = texts(message.value("content", Json()), at / "content", false);
    if (!parts) return parts.error();
    Message next;
    if (*role == "user") {
      next.role = Role::user;
      for (const std::string& part : *parts) next.content.push_back(TextContent{part});
    } else if (*role == "system" || *role == "developer") {
      next.role = Role::developer;
      next.content.push_back(DeveloperContent{joined(*parts), {}});
    } else {
      return (at / "role").invalid("is '" + *role + "'; use system, developer, user, assistant or tool");
    }
    messages_.push_back(std::move(next));
    return Ok{};
  }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Status add_assistant(const Json& message, const At& at) {
    const auto parts = texts(message.value("content", Json()), at / "content", false);
    if (!parts) return parts.error();
    const std::string content = joined(*parts);
    auto reasoning = text_of(message, "reasoning", at);
    if (reasoning && reasoning->empty()) reasoning = text_of(message, "reasoning_content", at);
    if (!reasoning) return reasoning.error();
    const Json calls = message.value("tool_calls", Json());
    if (!calls.is_null() && !calls.is_array()) return (at / "tool_calls").invalid("is not a list");
    const bool has_calls = calls.is_array() && !calls.empty();
    if (has_calls && !content.empty()) messages_.push_back(assistant("commentary", content));
    if (!reasoning->empty()) messages_.push_back(assistant("analysis", *reasoning));
    if (!has_calls && !content.empty()) messages_.push_back(assistant("final", content));
    for (std::size_t i = 0; has_calls && i < calls.size(); ++i)
      if (auto status = add_call(calls[i], (at / "tool_calls")[i]); !status) return status;
    return Ok{};
  }

  Status add_call(const Json& call, const At& at) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return at.invalid("is not a call with a function");
    const auto name = text_of(call["function"], "name", at / "function"), arguments = text_of(call["function"], "arguments", at / "function"),
               id = text_of(call, "id", at);
    for (const auto* member : {&name, &arguments, &id})
      if (!*member) return member->error();
    if (name->empty()) return (at / "function" / "name").invalid("is missing");
    Message next = assistant("commentary", *arguments);
    next.recipient = "functions." + *name;
    next.content_type = "json";
    if (!id->empty()) functions_[*id] = *next.recipient;
    messages_.push_back(std::move(next));
    return Ok{};
  }

  Status add_result(const Json& message, const At& at) {
    const auto parts = texts(message.value("content", Json()), at / "content", true);
    if (!parts) return parts.error();
    const auto id = text_of(message, "tool_call_id", at);
    if (!id) return id.error();
    const auto function = functions_.find(*id);
    if (function == functions_.end())
      return (at / "tool_call_id").invalid("is '" + *id + "', which no tool call before it has; send the assistant's message with the call as well");
    Message next;
    next.role = Role::tool;
    next.name = function->second;
    next.recipient = "assistant";
    next.channel = "commentary";
    next.content.push_back(TextContent{joined(*parts)});
    messages_.push_back(std::move(next));
    return Ok{};
  }

  std::vector<Message> messages_;
  std::map<std::string, std::string> functions_;  // recipients by id of the call
};

}  // namespace

Result<std::vector<Message>> messages_from_chat(const Json& messages) {
  const At at{"messages"};
  if (!messages.is_array()) return at.invalid("is not a list");
  Converter converter;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (auto status = converter.add(messages[i], at[i]); !status) return status.error();
  return converter.take();
}

}  // namespace althing::protocol::openai
