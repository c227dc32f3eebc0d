// Header, content, terminator, each literal fragment encoded by itself, so that no token ever spans two of them and no text of a user's can
// become a control token.
#include "protocol/harmony/render.hpp"

#include <string>
#include <string_view>

#include "protocol/harmony/content_text.hpp"
#include "protocol/harmony/history.hpp"
#include "protocol/harmony/replay.hpp"

namespace althing::protocol::harmony {
namespace {

std::string_view title_of(Role role) {
  constexpr std::string_view titles[] = {"System", "Developer", "User", "Assistant", "Tool"};
  return titles[static_cast<int>(role)];
}

class Renderer {
 public:
  explicit Renderer(const Format& format) : format_(format) {}

  Status message(const Message& message, bool function_tools) {
    if (!message.tokens.empty()) return replay(message);
    if (message.role == Role::tool && !message.name) return Error{ErrorCode::invalid_argument, "Tools should have a name!", "name"};
    header(message);
    for (const Content& part : message.content)
      if (Status rendered = content(part, message.role, function_tools); !rendered) return rendered;
    control(message.role == Role::assistant && message.recipient ? format_.call : format_.end);
    rendered_.boundaries.push_back(static_cast<std::uint32_t>(rendered_.tokens.size()));
    return Ok{};
  }

  void opening(Role role) {
    control(format_.start);
    text(name_of(role));
  }

  Rendered& rendered() { return rendered_; }

 private:
  void control(TokenId token) { rendered_.tokens.push_back(token); }

  void text(std::string_view fragment) {
    const std::vector<TokenId> ids = format_.tokenizer->encode(fragment);
    rendered_.tokens.insert(rendered_.tokens.end(), ids.begin(), ids.end());
  }

  Status replay(const Message& message) {
    const auto ids = replayed(format_, message);
    if (!ids) return ids.error();
    rendered_.tokens.insert(rendered_.tokens.end(), ids->begin(), ids->end());
    rendered_.boundaries.push_back(static_cast<std::uint32_t>(rendered_.tokens.size()));
    return Ok{};
  }

  void header(const Message& message) {
    control(format_.start);
    if (message.role == Role::tool) {
      text(*message.name);
    } else {
      text(name_of(message.role));
      if (message.name) text(":" + *message.name);
    }
    if (message.recipient && *message.recipient != "all") text(" to=" + *message.recipient);
    if (message.channel) {
      control(format_.channel);
      text(*message.channel);
    }
    if (message.content_type) content_type(*message.content_type);
    control(format_.message);
  }

  void content_type(std::string_view type) {
    if (!type.starts_with(constrain_marker)) return text(" " + std::string(type));
    text(" ");
    control(format_.constrain);
    if (type.size() > constrain_marker.size()) text(type.substr(constrain_marker.size()));
  }

  Status content(const Content& part, Role role, bool function_tools) {
    const auto misplaced = [role](std::string_view kind, std::string_view home) {
      return Error{ErrorCode::invalid_argument,
                   std::string(kind) + " may only appear in " + std::string(home) + " messages, found in " + std::string(title_of(role)), "content"};
    };
    if (const auto* plain = std::get_if<TextContent>(&part)) {
      text(plain->text);
    } else if (const auto* system = std::get_if<SystemContent>(&part)) {
      if (role != Role::system) return misplaced("SystemContent", "system");
      if (Status tools = check_tools(system->tools); !tools) return tools;
      text(system_text(*system, function_tools));
    } else if (const auto* developer = std::get_if<DeveloperContent>(&part)) {
      if (role != Role::developer) return misplaced("DeveloperContent", "developer");
      if (Status tools = check_tools(developer->tools); !tools) return tools;
      text(developer_text(*developer));
    }
    return Ok{};
  }

  const Format& format_;
  Rendered rendered_;
};

Status render_messages(Renderer& renderer, const Conversation& conversation, AnalysisHistory policy) {
  const bool function_tools = has_function_tools(conversation.messages);
  for (const std::size_t i : kept_messages(conversation.messages, policy)) {
    if (Status rendered = renderer.message(conversation.messages[i], function_tools); !rendered) {
      Error error = std::move(rendered).error();
      error.field = "messages[" + std::to_string(i) + "]." + error.field;
      return error;
    }
  }
  return Ok{};
}

}  // namespace

Result<Rendered> render_message(const Format& format, const Message& message, bool has_function_tools) {
  Renderer renderer(format);
  if (Status rendered = renderer.message(message, has_function_tools); !rendered) return std::move(rendered).error();
  return std::move(renderer.rendered());
}

Result<Rendered> render_conversation(const Format& format, const Conversation& conversation, const RenderOptions& options) {
  Renderer renderer(format);
  if (Status rendered = render_messages(renderer, conversation, options.analysis); !rendered) return std::move(rendered).error();
  return std::move(renderer.rendered());
}

Result<Rendered> render_for_completion(const Format& format, const Conversation& conversation, Role next_role, const RenderOptions& options) {
  Renderer renderer(format);
  if (Status rendered = render_messages(renderer, conversation, options.analysis); !rendered) return std::move(rendered).error();
  renderer.opening(next_role);
  return std::move(renderer.rendered());
}

Result<Rendered> render_for_training(const Format& format, const Conversation& conversation, const RenderOptions& options) {
  Result<Rendered> rendered = render_conversation(format, conversation, options);
  if (!rendered || conversation.messages.empty()) return rendered;
  const Message& last = conversation.messages.back();
  if (last.role == Role::assistant && last.channel == "final") rendered->tokens.back() = format.return_;
  return rendered;
}

}  // namespace althing::protocol::harmony
