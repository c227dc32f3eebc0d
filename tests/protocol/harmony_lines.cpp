// harmony_lines: Harmony's renderer and parser for programs in other languages. Each line of standard input is one JSON object, and has one line of
// output, in the same order: {"messages": […], "mode": "conversation" | "completion" | "training", "next_role": …, "auto_drop_analysis": …} gives
// {"tokens": […], "messages": […]}, the ids and what the whole messages in them parse back to, or {"error": …}. The vocabulary is gpt-oss's.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "protocol/harmony/parser.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/wire/json_text.hpp"
#include "tests/protocol/harmony_support.hpp"
#include "tests/support/usage.hpp"

namespace althing::tests {
namespace {

using Json = nlohmann::ordered_json;
using namespace protocol::harmony;

// Deeper than any schema that the renderer takes.
constexpr std::size_t depth_max = 200;

Result<Rendered> rendered(const Json& line) {
  auto conversation = conversation_from_json(line.at("messages"));
  if (!conversation) return conversation.error();
  RenderOptions options;
  options.analysis = line.value("auto_drop_analysis", true) ? AnalysisHistory::upstream : AnalysisHistory::keep;
  const std::string mode = line.value("mode", "completion");
  if (mode == "conversation") return render_conversation(o200k_format(), *conversation, options);
  if (mode == "training") return render_for_training(o200k_format(), *conversation, options);
  const auto role = role_of(line.value("next_role", "assistant"));
  if (!role) return Error{ErrorCode::invalid_argument, "unknown next_role", "next_role"};
  return render_for_completion(o200k_format(), *conversation, *role, options);
}

Json answer(const std::string& text) {
  const auto line = protocol::wire::parse_json(text, depth_max);
  if (!line) return {{"error", line.error().message}};
  auto result = rendered(*line);
  if (!result) return {{"error", result.error().message}};
  Json told = {{"tokens", result->tokens}};
  // Without the header that a prompt ends in.
  const auto stop = std::find_if(result->tokens.rbegin(), result->tokens.rend(), [](TokenId id) { return o200k_format().is_message_stop(id); });
  result->tokens.erase(stop.base(), result->tokens.end());
  if (const auto messages = parse_messages(o200k_format(), result->tokens, std::nullopt)) {
    told["messages"] = Json::array();
    for (const Message& message : *messages) told["messages"].push_back(to_json(message));
  } else {
    told["parse_error"] = messages.error().message;
  }
  return told;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  using namespace althing::tests;
  if (helped(argc, argv,
             "harmony_lines < LINES\nRenders conversations, one JSON object a line, and reads their ids back; one line of JSON for each."))
    return 0;
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(line).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  return 0;
}
