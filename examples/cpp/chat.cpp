// Asks an Althing server one question through the C++ client and prints the answer as it comes: reasoning in brackets, the final answer plain.
//
//   chat [tcp://127.0.0.1:4550] 12 + 30
#include <chrono>
#include <cstdio>
#include <string>

#include "protocol/client/client.hpp"

using namespace althing;
namespace wire = protocol::wire;
namespace harmony = protocol::harmony;

namespace {

void print(const wire::DeltaEvent& event) {
  if (const auto* started = std::get_if<wire::MessageStarted>(&event)) {
    if (started->channel != "final")
      std::printf("[%s%s%s] ", started->channel.c_str(), started->recipient.empty() ? "" : " to=", started->recipient.c_str());
  } else if (const auto* text = std::get_if<wire::Text>(&event)) {
    std::fwrite(text->text.data(), 1, text->text.size(), stdout);
  } else {
    std::putchar('\n');
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  protocol::ClientOptions options;
  int word = 1;
  if (argc > 1 && std::string(argv[1]).find("://") != std::string::npos) options.endpoint = argv[word++];
  std::string prompt;
  for (; word < argc; ++word) prompt += (prompt.empty() ? "" : " ") + std::string(argv[word]);
  if (prompt.empty()) {
    std::fprintf(stderr, "usage: chat [ENDPOINT] PROMPT…\n");
    return 2;
  }

  auto client = protocol::Client::connect(options);
  if (!client) {
    std::fprintf(stderr, "chat: %s\n", client.error().message.c_str());
    return 1;
  }
  harmony::Message question;
  question.role = harmony::Role::user;
  question.content.emplace_back(harmony::TextContent{prompt});
  wire::Submit submit;
  submit.messages = {question};
  submit.credit = 64;  // the client grants more as this program prints

  int status = 0;
  const auto submitted = client->submit(submit, [&](const protocol::StreamEvent& event) {
    if (const auto* delta = std::get_if<wire::Delta>(&event)) {
      // With submit.sampling.n over 1, delta->choice says which of the answers this belongs to; they come interleaved.
      for (const auto& part : delta->events) print(part);
    } else if (const auto* error = std::get_if<Error>(&event)) {
      std::fprintf(stderr, "\nchat: %s\n", error->message.c_str());
      status = 1;
    }
  });
  if (!submitted) {
    std::fprintf(stderr, "chat: %s\n", submitted.error().message.c_str());
    return 1;
  }
  while (client->open_streams() > 0) client->poll(std::chrono::milliseconds(100));
  return status;
}
