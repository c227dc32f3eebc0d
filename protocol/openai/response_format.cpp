// See the header.
#include "protocol/openai/response_format.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "protocol/grammar/grammar.hpp"
#include "protocol/wire/json_members.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t name_bytes_max = 64;

std::string instructions_for(const std::string& name, const std::string& description, const Json& schema) {
  std::string text = "# Response Formats\n\n## " + (name.empty() ? "response" : name) + "\n\n";
  if (!description.empty()) text += "// " + description + "\n";
  return text + schema.dump();
}

Result<std::optional<ResponseFormat>> schema_format(const Json& format, const std::string& member) {
  std::optional<Error> error;
  const wire::JsonMembers members(format, member + ".", error);
  const std::string name = members.text("name"), description = members.text("description");
  if (members.find("strict") != nullptr) members.boolean("strict");
  const Json* schema = members.find("schema");
  if (error) return std::move(*error);
  const std::string path = member + ".schema";
  if (schema == nullptr) return Error{ErrorCode::invalid_argument, path + " is missing; send a JSON schema", path};
  if (name.size() > name_bytes_max)
    return Error{ErrorCode::invalid_argument,
                 member + ".name has " + std::to_string(name.size()) + " bytes and " + std::to_string(name_bytes_max) + " are the most",
                 member + ".name"};
  ResponseFormat to{{wire::GrammarKind::json_schema, schema->dump()}, instructions_for(name, description, *schema)};
  // The engine would refuse it too, in words of its own protocol.
  if (auto compiled = grammar::compile(to.grammar); !compiled) return Error{compiled.error().code, path + ": " + compiled.error().message, path};
  return std::optional(std::move(to));
}

}  // namespace

Result<std::optional<ResponseFormat>> response_format_from(const Json& format, const std::string& member, bool is_flat) {
  std::optional<Error> error;
  const wire::JsonMembers members(format, member + ".", error);
  const std::string type = members.text("type");
  const Json* schema = is_flat || type != "json_schema" ? &format : members.object("json_schema");
  if (error) return std::move(*error);
  if (type == "text") return std::optional<ResponseFormat>();
  if (type == "json_object") return std::optional(ResponseFormat{{wire::GrammarKind::json_object, ""}, ""});
  if (type != "json_schema")
    return Error{ErrorCode::unsupported, member + ".type is '" + type.substr(0, 60) + "'; use text, json_object or json_schema", member + ".type"};
  const std::string path = is_flat ? member : member + ".json_schema";
  if (schema == nullptr) return Error{ErrorCode::invalid_argument, path + " is missing; send an object with name and schema", path};
  return schema_format(*schema, path);
}

void tell_format(const ResponseFormat& format, std::vector<harmony::Message>& messages) {
  if (format.instructions.empty()) return;
  for (harmony::Message& message : messages) {
    if (message.role != harmony::Role::developer || message.content.empty()) continue;
    if (auto* developer = std::get_if<harmony::DeveloperContent>(&message.content.front())) {
      std::string& text = developer->instructions ? *developer->instructions : developer->instructions.emplace();
      text += (text.empty() ? "" : "\n\n") + format.instructions;
      return;
    }
  }
  harmony::Message developer;
  developer.role = harmony::Role::developer;
  developer.content.emplace_back(harmony::DeveloperContent{format.instructions, {}});
  const auto is_system = [](const harmony::Message& message) { return message.role == harmony::Role::system; };
  messages.insert(std::find_if_not(messages.begin(), messages.end(), is_system), std::move(developer));
}

}  // namespace althing::protocol::openai
