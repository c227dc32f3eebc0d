// Names of the enumerations, and messages as JSON. What is disabled in a system message is written as null, because a member that is left out
// would come back as its default.
#include "protocol/harmony/message.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> role_names = {"system", "developer", "user", "assistant", "tool"};
constexpr std::array<std::string_view, 3> effort_names = {"low", "medium", "high"};

Json or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

Json tools_json(const Tools& tools) {
  Json json = Json::object();
  for (const auto& [key, space] : tools) {
    Json functions = Json::array();
    for (const Function& function : space.functions) {
      functions.push_back(
          {{"name", function.name}, {"description", function.description}, {"parameters", function.parameters ? *function.parameters : Json()}});
    }
    json[key] = {{"name", space.name}, {"description", or_null(space.description)}, {"tools", std::move(functions)}};
  }
  return json;
}

Json system_json(const SystemContent& content) {
  Json json = {{"type", "system_content"}, {"model_identity", or_null(content.model_identity)}, {"reasoning_effort", nullptr}};
  if (content.reasoning_effort) {
    constexpr std::array<std::string_view, 3> spelled = {"Low", "Medium", "High"};
    json["reasoning_effort"] = spelled[static_cast<std::size_t>(*content.reasoning_effort)];
  }
  json["knowledge_cutoff"] = or_null(content.knowledge_cutoff);
  json["conversation_start_date"] = or_null(content.conversation_start_date);
  json["channel_config"] = nullptr;
  if (content.channel_config)
    json["channel_config"] = {{"valid_channels", content.channel_config->valid_channels},
                              {"channel_required", content.channel_config->channel_required}};
  if (!content.tools.empty()) json["tools"] = tools_json(content.tools);
  return json;
}

Json developer_json(const DeveloperContent& content) {
  Json json = {{"type", "developer_content"}};
  if (content.instructions) json["instructions"] = *content.instructions;
  if (!content.tools.empty()) json["tools"] = tools_json(content.tools);
  return json;
}

Json part_json(const Content& part) {
  if (const auto* system = std::get_if<SystemContent>(&part)) return system_json(*system);
  if (const auto* developer = std::get_if<DeveloperContent>(&part)) return developer_json(*developer);
  return {{"type", "text"}, {"text", std::get<TextContent>(part).text}};
}

}  // namespace

std::string_view name_of(Role role) { return role_names[static_cast<std::size_t>(role)]; }

std::optional<Role> role_of(std::string_view name) {
  const auto found = std::find(role_names.begin(), role_names.end(), name);
  if (found == role_names.end()) return std::nullopt;
  return static_cast<Role>(found - role_names.begin());
}

std::string_view name_of(ReasoningEffort effort) { return effort_names[static_cast<std::size_t>(effort)]; }

nlohmann::ordered_json to_json(const Message& message) {
  Json json = {{"role", name_of(message.role)}};
  if (message.name) json["name"] = *message.name;
  if (message.recipient) json["recipient"] = *message.recipient;
  if (message.channel) json["channel"] = *message.channel;
  if (message.content_type) json["content_type"] = *message.content_type;
  const auto* only = message.content.size() == 1 ? std::get_if<TextContent>(&message.content.front()) : nullptr;
  if (only) {
    json["content"] = only->text;
  } else {
    json["content"] = Json::array();
    for (const Content& part : message.content) json["content"].push_back(part_json(part));
  }
  if (!message.tokens.empty()) json["tokens"] = message.tokens;
  return json;
}

}  // namespace althing::protocol::harmony
