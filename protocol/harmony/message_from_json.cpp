// Reads openai-harmony's JSON form of messages. Unknown members are ignored, null is the same as absent (but switches off a default of the
// system content), and a wrong type is an error that names the member by its path. The first error wins; what is read after it is discarded.
#include <algorithm>
#include <limits>
#include <string>

#include "protocol/harmony/builtin_tools.hpp"
#include "protocol/harmony/message.hpp"
#include "protocol/harmony/schema_type.hpp"

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;

std::string short_text(const Json& value) {
  constexpr std::size_t shown_max = 40;
  std::string text = value.is_structured() ? value.type_name() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Cut between characters.
  if (text.size() > shown_max) {
    std::size_t end = shown_max;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "…";
  }
  return text;
}

class Reader {
 public:
  std::optional<Error> error;

  Message message(const Json& json, const std::string& path) {
    Message message;
    if (!is(json, json.is_object(), path.empty() ? "message" : path, "an object")) return message;
    const std::string prefix = path.empty() ? "" : path + ".";
    if (const auto role = required_text(json, "role", prefix)) {
      if (const auto known = role_of(*role)) {
        message.role = *known;
      } else {
        fail(prefix + "role", "is " + short_text(*role) + "; use system, developer, user, assistant or tool");
      }
    }
    message.name = text(json, "name", prefix);
    message.recipient = text(json, "recipient", prefix);
    message.channel = text(json, "channel", prefix);
    message.content_type = text(json, "content_type", prefix);
    const Json* content = present(json, "content");
    if (!content) {
      fail(prefix + "content", "is missing; give a string or a list of parts");
    } else if (content->is_string()) {
      message.content.push_back(TextContent{content->get<std::string>()});
    } else if (is(*content, content->is_array(), prefix + "content", "a string or a list of parts")) {
      for (std::size_t i = 0; i < content->size(); ++i) message.content.push_back(part((*content)[i], item(prefix + "content", i)));
    }
    message.tokens = tokens(json, prefix + "tokens");
    return message;
  }

  static std::string item(const std::string& path, std::size_t i) { return path + "[" + std::to_string(i) + "]"; }

  // Whether `value` has the wanted type; says so if not.
  bool is(const Json& value, bool wanted, const std::string& path, std::string_view what) {
    if (!wanted) fail(path, "is " + short_text(value) + "; it must be " + std::string(what));
    return wanted;
  }

 private:
  void fail(const std::string& path, const std::string& what) {
    if (!error) error = Error{ErrorCode::invalid_argument, path + " " + what + ".", path};
  }

  // The member, unless it is absent or null.
  static const Json* present(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::string> text(const Json& object, const char* key, const std::string& prefix) {
    const Json* value = present(object, key);
    if (!value || !is(*value, value->is_string(), prefix + key, "a string")) return std::nullopt;
    return value->get<std::string>();
  }

  std::optional<std::string> required_text(const Json& object, const char* key, const std::string& prefix) {
    if (!present(object, key)) fail(prefix + key, "is missing; give a string");
    return text(object, key, prefix);
  }

  std::vector<TokenId> tokens(const Json& json, const std::string& path) {
    std::vector<TokenId> tokens;
    const Json* value = present(json, "tokens");
    if (!value || !is(*value, value->is_array(), path, "a list of token ids")) return tokens;
    tokens.reserve(value->size());
    for (std::size_t i = 0; i < value->size() && !error; ++i) {
      const Json& id = (*value)[i];
      // What is no id at all is 2^64 - 1 here, which is none either.
      const std::uint64_t number =
          id.is_number_integer() && (id.is_number_unsigned() || id.get<std::int64_t>() >= 0) ? id.get<std::uint64_t>() : UINT64_MAX;
      if (is(id, number <= std::numeric_limits<TokenId>::max(), item(path, i), "a token id")) tokens.push_back(static_cast<TokenId>(number));
    }
    return tokens;
  }

  Content part(const Json& json, const std::string& path) {
    if (!is(json, json.is_object(), path, "an object with a type")) return TextContent{};
    const std::string prefix = path + ".";
    const std::string type = required_text(json, "type", prefix).value_or("");
    if (type == "system_content") return system_content(json, prefix);
    if (type == "developer_content") return developer_content(json, prefix);
    if (type != "text") fail(prefix + "type", "is \"" + type + "\"; use text, system_content or developer_content");
    return TextContent{required_text(json, "text", prefix).value_or("")};
  }

  SystemContent system_content(const Json& json, const std::string& prefix) {
    SystemContent content;
    if (json.contains("model_identity")) content.model_identity = text(json, "model_identity", prefix);
    if (json.contains("knowledge_cutoff")) content.knowledge_cutoff = text(json, "knowledge_cutoff", prefix);
    content.conversation_start_date = text(json, "conversation_start_date", prefix);
    if (json.contains("reasoning_effort")) content.reasoning_effort = effort(json, prefix);
    if (json.contains("channel_config")) content.channel_config = channels(json, prefix + "channel_config");
    content.tools = tools(json, prefix + "tools");
    return content;
  }

  DeveloperContent developer_content(const Json& json, const std::string& prefix) {
    return {text(json, "instructions", prefix), tools(json, prefix + "tools")};
  }

  std::optional<ReasoningEffort> effort(const Json& json, const std::string& prefix) {
    std::optional<std::string> name = text(json, "reasoning_effort", prefix);
    if (!name) return std::nullopt;
    for (char& c : *name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    for (const auto known : {ReasoningEffort::low, ReasoningEffort::medium, ReasoningEffort::high})
      if (*name == name_of(known)) return known;
    fail(prefix + "reasoning_effort", "is " + short_text(*name) + "; use low, medium or high");
    return std::nullopt;
  }

  std::optional<ChannelConfig> channels(const Json& json, const std::string& path) {
    const Json* value = present(json, "channel_config");
    if (!value || !is(*value, value->is_object(), path, "an object")) return std::nullopt;
    ChannelConfig config;
    if (const Json* valid = present(*value, "valid_channels");
        valid && is(*valid, valid->is_array(), path + ".valid_channels", "a list of strings")) {
      config.valid_channels.clear();
      for (std::size_t i = 0; i < valid->size(); ++i)
        if (is((*valid)[i], (*valid)[i].is_string(), item(path + ".valid_channels", i), "a string"))
          config.valid_channels.push_back((*valid)[i].get<std::string>());
    }
    if (const Json* required = present(*value, "channel_required");
        required && is(*required, required->is_boolean(), path + ".channel_required", "true or false"))
      config.channel_required = required->get<bool>();
    return config;
  }

  Tools tools(const Json& json, const std::string& path) {
    Tools tools;
    const Json* value = present(json, "tools");
    if (!value || !is(*value, value->is_object(), path, "an object of namespaces")) return tools;
    for (const auto& [key, space] : value->items()) tools.emplace_back(key, tool_namespace(space, path + "." + key));
    std::stable_sort(tools.begin(), tools.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return tools;
  }

  ToolNamespace tool_namespace(const Json& json, const std::string& path) {
    if (json == "BUILTIN_BROWSER") return browser_tools();
    if (json == "BUILTIN_PYTHON") return python_tools();
    if (!is(json, json.is_object(), path, "an object, \"BUILTIN_BROWSER\" or \"BUILTIN_PYTHON\"")) return {};
    const std::string prefix = path + ".";
    ToolNamespace space{required_text(json, "name", prefix).value_or(""), text(json, "description", prefix), {}};
    const Json* functions = present(json, "tools");
    if (!functions || !is(*functions, functions->is_array(), prefix + "tools", "a list of functions")) return space;
    for (std::size_t i = 0; i < functions->size(); ++i) space.functions.push_back(function((*functions)[i], item(prefix + "tools", i)));
    return space;
  }

  Function function(const Json& json, const std::string& path) {
    if (!is(json, json.is_object(), path, "an object")) return {};
    const std::string prefix = path + ".";
    Function function{required_text(json, "name", prefix).value_or(""), required_text(json, "description", prefix).value_or(""), std::nullopt};
    const Json* parameters = present(json, "parameters");
    if (!parameters) return function;
    // Copying recurses once a level, as rendering does.
    if (!nesting_at_most(*parameters, schema_depth_max)) {
      fail(prefix + "parameters", "is nested deeper than " + std::to_string(schema_depth_max) + " levels; flatten the schema");
    } else {
      function.parameters = *parameters;
    }
    return function;
  }
};

}  // namespace

Result<Message> message_from_json(const nlohmann::ordered_json& json) {
  Reader reader;
  Message message = reader.message(json, "");
  if (reader.error) return *std::move(reader.error);
  return message;
}

Result<Conversation> conversation_from_json(const nlohmann::ordered_json& json) {
  Reader reader;
  Conversation conversation;
  const auto member = json.is_object() ? json.find("messages") : json.end();
  const Json& list = json.is_object() && member != json.end() ? *member : json;
  if (reader.is(list, list.is_array(), "messages", "a list of messages")) {
    for (std::size_t i = 0; i < list.size(); ++i) conversation.messages.push_back(reader.message(list[i], Reader::item("messages", i)));
  }
  if (reader.error) return *std::move(reader.error);
  return conversation;
}

}  // namespace althing::protocol::harmony
