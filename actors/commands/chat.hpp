// `althing chat`: a conversation with a running server in the terminal, interactive or one question.
#pragma once

#include <optional>
#include <string>

#include "actors/commands/connect.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::actors {

// Flags that `chat` and `generate` share.
struct AskSettings {
  std::string reasoning = "medium";
  std::string instructions;  // a developer message; "" for none
  std::string tools_file;    // JSON: a list of {"name", "description", "parameters"}
  std::string colour = "auto";
  bool json = false;
  std::string trace_file;  // where to write how tokens were routed (docs/routing-trace.md); "" for nowhere
  protocol::wire::Sampling sampling;
};

struct ChatSettings {
  ConnectSettings server;
  std::string tenant;  // "": the server's default
  std::int32_t priority = 0;
  std::optional<std::string> once;  // a question; absent: interactive
  AskSettings ask;
};

// The submit that `ask` describes, without a question yet. Errors: invalid_argument, not_found (tools file), corrupt (its JSON).
Result<protocol::wire::Submit> submit_of(const AskSettings& ask);

protocol::harmony::Message user_message(const std::string& text);

// Exit codes: 0, or that of the error's class.
int run_chat(const ChatSettings& settings);

}  // namespace althing::actors
