// `althing generate`: one prompt, one process, no server. The same actors as `serve`, without sockets.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "actors/commands/chat.hpp"
#include "actors/settings.hpp"
#include "protocol/chat/chat_format.hpp"

namespace althing::actors {

struct GenerateSettings {
  ServeSettings engine;  // model, ranks, threads, KV memory, log
  std::string prompt;
  bool raw = false;  // the prompt is text to continue, special tokens by their names; no chat format
  AskSettings ask;
};

int run_generate(const GenerateSettings& settings);

// What the settings ask for. Errors: those of submit_of; invalid_argument for an empty raw prompt.
Result<protocol::wire::Submit> request_of(const GenerateSettings& settings, const protocol::chat::ChatFormat& format);

// Answers one request in this process. `ask` makes it; `hear` hears what a client would, until it returns the exit code. Returns that, or the code of
// what went wrong before there was an answer, which has been said.
int answer_here(const GenerateSettings& settings, const std::function<Result<protocol::wire::Submit>(const protocol::chat::ChatFormat&)>& ask,
                const std::function<std::optional<int>(const protocol::wire::ServerMessage&)>& hear);

}  // namespace althing::actors
