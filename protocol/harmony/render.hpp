// Messages to token ids. Only the renderer makes control tokens; all text goes through Tokenizer::encode, which cannot.
#pragma once

#include <cstdint>
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

struct RenderOptions {
  AnalysisHistory analysis = AnalysisHistory::drop_finished_turns;
};

struct Rendered {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> boundaries;  // tokens.size() after each message, ascending
};

// Errors: invalid_argument, with openai-harmony's wording ("Tools should have a name!", …).
Result<Rendered> render_message(const Format& format, const Message& message, bool has_function_tools);
Result<Rendered> render_conversation(const Format& format, const Conversation& conversation, const RenderOptions& options);
// As render_conversation, then <|start|> and the next role.
Result<Rendered> render_for_completion(const Format& format, const Conversation& conversation, Role next_role, const RenderOptions& options);
// The last token becomes <|return|> when the last message is an assistant's final.
Result<Rendered> render_for_training(const Format& format, const Conversation& conversation, const RenderOptions& options);

}  // namespace althing::protocol::harmony
