// `althing generate`: one prompt, one process, no server. The same actors as `serve`, without sockets.
#pragma once

#include <string>

#include "actors/commands/chat.hpp"
#include "actors/settings.hpp"

namespace althing::actors {

struct GenerateSettings {
  ServeSettings engine;  // model, ranks, threads, KV memory, log
  std::string prompt;
  bool raw = false;  // the prompt is text to continue, special tokens by their names; no chat format
  AskSettings ask;
};

int run_generate(const GenerateSettings& settings);

}  // namespace althing::actors
