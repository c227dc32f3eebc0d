// Asks an Althing server one question through the C++ client and prints the answer as it comes: reasoning in brackets, the final answer plain.
//
//   chat [tcp://127.0.0.1:4550] [--server-key server.pub --key alice.key] 12 + 30
//
// The keys are for servers that want some (`althing keys new` makes them); the secret one must be readable by you alone.
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "protocol/client/client.hpp"
#include "protocol/curve/key_file.hpp"

using namespace althing;
namespace curve = protocol::curve;
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

struct Words {
  std::string endpoint, server_key, key, prompt;
};

// nullopt: something is missing, or one key is given without the other.
std::optional<Words> words_of(int argc, char** argv) {
  Words words;
  int at = 1;
  for (; at < argc; ++at) {
    const std::string word = argv[at];
    std::string* const value = word == "--server-key" ? &words.server_key : word == "--key" ? &words.key : nullptr;
    if (value != nullptr && at + 1 < argc)
      *value = argv[++at];
    else if (word.find("://") != std::string::npos)
      words.endpoint = word;
    else
      break;
  }
  for (; at < argc; ++at) words.prompt += (words.prompt.empty() ? "" : " ") + std::string(argv[at]);
  if (words.prompt.empty() || words.server_key.empty() != words.key.empty()) return std::nullopt;
  return words;
}

// What lets us in: the server's public key, or its .pub file, and our own secret one with the public half that belongs to it.
Result<std::shared_ptr<const curve::ClientKeys>> keys_of(const Words& words) {
  auto server = curve::public_key_from(words.server_key);
  if (!server) return server.error();
  auto secret = curve::read_secret_key(words.key);
  if (!secret) return secret.error();
  curve::PublicKey own = secret->public_key();
  return std::make_shared<const curve::ClientKeys>(curve::ClientKeys{std::move(*server), {std::move(own), std::move(*secret)}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto words = words_of(argc, argv);
  if (!words) {
    std::fprintf(stderr, "usage: chat [ENDPOINT] [--server-key FILE --key FILE] PROMPT…\n");
    return 2;
  }
  protocol::ClientOptions options;
  if (!words->endpoint.empty()) options.endpoint = words->endpoint;
  if (!words->key.empty()) {
    auto keys = keys_of(*words);
    if (!keys) {
      std::fprintf(stderr, "chat: %s\n", keys.error().message.c_str());
      return 1;
    }
    options.keys = std::move(*keys);
  }

  auto client = protocol::Client::connect(options);
  if (!client) {
    std::fprintf(stderr, "chat: %s\n", client.error().message.c_str());
    return 1;
  }
  harmony::Message question;
  question.role = harmony::Role::user;
  question.content.emplace_back(harmony::TextContent{words->prompt});
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
