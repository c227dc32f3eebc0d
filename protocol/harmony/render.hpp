// Messages to token ids. Only the renderer makes control tokens; all text goes through Tokenizer::encode, which cannot. A message that has `tokens`
// is rendered as these (replay.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

// Which analysis messages of the history are left out.
enum class AnalysisHistory : std::uint8_t {
  drop_finished_turns,  // all analysis before the last final message of an assistant (the format's guide)
  upstream,             // openai-harmony 0.0.8: only if the last assistant message is final, analysis before the FIRST final
  keep,
};

constexpr std::string_view name_of(AnalysisHistory policy) {
  constexpr std::string_view names[] = {"drop_finished_turns", "upstream", "keep"};
  return names[static_cast<int>(policy)];
}
constexpr std::optional<AnalysisHistory> analysis_history_of(std::string_view name) {
  for (const auto policy : {AnalysisHistory::drop_finished_turns, AnalysisHistory::upstream, AnalysisHistory::keep})
    if (name == name_of(policy)) return policy;
  return std::nullopt;
}

struct RenderOptions {
  AnalysisHistory analysis = AnalysisHistory::drop_finished_turns;
};

struct Rendered {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> boundaries;  // tokens.size() after each message, ascending
};

// Errors: invalid_argument, with openai-harmony's wording ("Tools should have a name!", …), and those of replayed.
Result<Rendered> render_message(const Format& format, const Message& message, bool has_function_tools);
Result<Rendered> render_conversation(const Format& format, const Conversation& conversation, const RenderOptions& options);
// As render_conversation, then <|start|> and the next role.
Result<Rendered> render_for_completion(const Format& format, const Conversation& conversation, Role next_role, const RenderOptions& options);
// The last token becomes <|return|> when the last message is an assistant's final.
Result<Rendered> render_for_training(const Format& format, const Conversation& conversation, const RenderOptions& options);

}  // namespace althing::protocol::harmony
