// The Harmony data model: conversations of messages with role, recipient, channel and content. JSON forms as in openai-harmony.
// Facts: reference of the format in docs/harmony.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol::harmony {

enum class Role : std::uint8_t { system, developer, user, assistant, tool };
std::string_view name_of(Role role);
std::optional<Role> role_of(std::string_view name);

enum class ReasoningEffort : std::uint8_t { low, medium, high };
std::string_view name_of(ReasoningEffort effort);

struct Function {
  std::string name;
  std::string description;
  std::optional<nlohmann::ordered_json> parameters;  // JSON schema; document order of keys is kept
};

struct ToolNamespace {
  std::string name;
  std::optional<std::string> description;
  std::vector<Function> functions;
};

// Rendered in ascending byte order of the key.
using Tools = std::vector<std::pair<std::string, ToolNamespace>>;

struct ChannelConfig {
  std::vector<std::string> valid_channels{"analysis", "commentary", "final"};
  bool channel_required = true;
};

struct SystemContent {
  std::optional<std::string> model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::optional<ReasoningEffort> reasoning_effort = ReasoningEffort::medium;
  std::optional<std::string> knowledge_cutoff = "2024-06";
  std::optional<std::string> conversation_start_date;  // YYYY-MM-DD
  std::optional<ChannelConfig> channel_config = ChannelConfig{};
  Tools tools;
};

struct DeveloperContent {
  std::optional<std::string> instructions;
  Tools tools;
};

struct TextContent {
  std::string text;
};

using Content = std::variant<TextContent, SystemContent, DeveloperContent>;

struct Message {
  Role role = Role::user;
  std::optional<std::string> name;
  std::optional<std::string> recipient;
  std::optional<std::string> channel;
  std::optional<std::string> content_type;
  std::vector<Content> content;
  std::vector<TokenId> tokens{};  // of an assistant's message that its model generated: its ids, which are rendered as they are (replay.hpp)
};

struct Conversation {
  std::vector<Message> messages;
};

// openai-harmony's JSON form of a message, both ways, with the member `tokens` besides. Errors: invalid_argument naming the member.
Result<Message> message_from_json(const nlohmann::ordered_json& json);
nlohmann::ordered_json to_json(const Message& message);
Result<Conversation> conversation_from_json(const nlohmann::ordered_json& json);  // {"messages": […]} or the array

}  // namespace althing::protocol::harmony
