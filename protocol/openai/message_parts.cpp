// See the header.
#include "protocol/openai/message_parts.hpp"

#include <utility>

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using harmony::Message;
using harmony::Role;

constexpr const char* content_type_of_calls = "json";

}  // namespace

Result<std::vector<std::string>> texts_of(const Json& content, const Place& at, OtherParts other) {
  if (content.is_null()) return std::vector<std::string>{};
  if (content.is_string()) return std::vector<std::string>{content.get<std::string>()};
  if (!content.is_array()) return at.invalid("is neither a string nor a list of parts");
  std::vector<std::string> all;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return at[i].invalid("is not a part with a type");
    const std::string type = part["type"];
    const bool is_refusal = type == "refusal";
    if (type != "text" && type != "input_text" && type != "output_text" && !is_refusal) {
      if (other == OtherParts::left_out) continue;
      return at[i].unsupported("is of type '" + type + "'; this model reads text only");
    }
    const char* member = is_refusal ? "refusal" : "text";
    if (!part.contains(member) || !part[member].is_string()) return at[i].invalid(std::string("has no ") + member);
    all.push_back(part[member]);
  }
  return all;
}

Result<std::string> text_of_parts(const Json& content, const Place& at, OtherParts other) {
  const auto parts = texts_of(content, at, other);
  if (!parts) return parts.error();
  std::string all;
  for (const std::string& part : *parts) all += part;
  return all;
}

Result<std::string> text_member(const Json& object, const std::string& member, const Place& at) {
  const auto found = object.find(member);
  if (found == object.end() || found->is_null()) return std::string();
  if (!found->is_string()) return (at / member).invalid("is not a string");
  return found->get<std::string>();
}

Message assistant_message(const std::string& channel, std::string text) {
  Message message;
  message.role = Role::assistant;
  message.channel = channel;
  message.content.emplace_back(harmony::TextContent{std::move(text)});
  return message;
}

Message call_message(const std::string& function, std::string arguments) {
  Message message = assistant_message("commentary", std::move(arguments));
  message.recipient = "functions." + function;
  message.content_type = content_type_of_calls;
  return message;
}

Message result_message(const std::string& function, std::string text) {
  Message message;
  message.role = Role::tool;
  message.name = "functions." + function;
  message.recipient = "assistant";
  message.channel = "commentary";
  message.content.emplace_back(harmony::TextContent{std::move(text)});
  return message;
}

}  // namespace althing::protocol::openai
