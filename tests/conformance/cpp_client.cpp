// The C++ client as a client under test of the conformance kit: docs/conformance.md has the contract. One JSON line on standard input says what to
// ask; everything that the streams say goes to standard output as JSON lines.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "protocol/client/client.hpp"
#include "tests/support/usage.hpp"

using namespace althing;
namespace wire = protocol::wire;
using nlohmann::ordered_json;

namespace {

void write(const char* event, const std::string& request_id, ordered_json members) {
  ordered_json line = {{"event", event}, {"request_id", request_id}};
  line.update(members);
  std::cout << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
}

void write_error(const std::string& request_id, const Error& error) {
  write("error", request_id, {{"code", name_of(error.code)}, {"message", error.message}, {"field", error.field}});
}

// One request: what it was told to do, and how far it is.
struct Teller {
  protocol::Client& client;
  std::string request_id;
  bool step = false;  // waits for a line before it goes on behind each event
  int cancel_after = 0;
  int texts = 0;

  void event(std::uint32_t choice, const wire::DeltaEvent& event) {
    if (const auto* begun = std::get_if<wire::MessageStarted>(&event)) {
      write("message_started", request_id,
            {{"choice", choice},
             {"index", begun->index},
             {"channel", begun->channel},
             {"recipient", begun->recipient},
             {"content_type", begun->content_type}});
    } else if (const auto* text = std::get_if<wire::Text>(&event)) {
      write("text", request_id, {{"choice", choice}, {"index", text->index}, {"text", text->text}});
      if (++texts == cancel_after) client.cancel(request_id);
    } else {
      write("message_ended", request_id, {{"choice", choice}, {"index", std::get<wire::MessageEnded>(event).index}});
    }
    std::string line;
    if (step) std::getline(std::cin, line);
  }

  void done(const wire::Done& done) const {
    ordered_json choices = ordered_json::array();
    for (const auto& end : done.choices) choices.push_back({{"reason", name_of(end.reason)}, {"completion_tokens", end.completion_tokens}});
    const ordered_json usage = {
        {"prompt_tokens", done.usage.prompt_tokens}, {"completion_tokens", done.usage.completion_tokens}, {"preemptions", done.usage.preemptions}};
    write("done", request_id, {{"reason", name_of(done.reason)}, {"usage", usage}, {"choices", choices}});
  }

  void hear(const protocol::StreamEvent& what) {
    if (const auto* accepted = std::get_if<wire::Accepted>(&what)) {
      write("accepted", request_id, {{"prompt_tokens", accepted->prompt_tokens}, {"seed", std::to_string(accepted->seed)}});
    } else if (const auto* delta = std::get_if<wire::Delta>(&what)) {
      for (const auto& part : delta->events) event(delta->choice, part);
      if (!delta->tokens.empty()) write("tokens", request_id, {{"choice", delta->choice}, {"tokens", delta->tokens}});
    } else if (const auto* end = std::get_if<wire::Done>(&what)) {
      done(*end);
    } else {
      write_error(request_id, std::get<Error>(what));
    }
  }
};

// False when it could not be sent; that is told as its end.
bool submit(protocol::Client& client, const ordered_json& request, bool step) {
  const std::string id = request.at("request_id");
  ordered_json message = request.at("submit");
  message["type"] = "submit";
  message["request_id"] = id;
  auto decoded = wire::decode_client(message.dump(), wire::Encoding::json, Limits{});
  if (!decoded) return write_error(id, decoded.error()), false;
  Teller teller{client, id, step, request.value("cancel_after", 0)};
  const auto sent =
      client.submit(std::get<wire::Submit>(std::move(*decoded)), [teller](const protocol::StreamEvent& what) mutable { teller.hear(what); });
  if (!sent) write_error(id, sent.error());
  return sent.ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (tests::helped(argc, argv,
                    "conformance_client <REQUESTS\n\nThe C++ client for tests/conformance/run: one JSON line in, JSON lines out; docs/conformance.md "
                    "has both."))
    return 0;
  std::string line;
  std::getline(std::cin, line);
  const auto options = ordered_json::parse(line, nullptr, false);
  if (options.is_discarded()) {
    std::fprintf(stderr, "conformance_client: the first line of standard input is no JSON; see docs/conformance.md\n");
    return 2;
  }
  protocol::ClientOptions settings;
  settings.endpoint = options.at("endpoint");
  settings.encoding = options.at("encoding") == "capnp" ? wire::Encoding::capnp : wire::Encoding::json;
  settings.timeout = std::chrono::milliseconds(options.at("silence_ms").get<int>());
  auto client = protocol::Client::connect(settings);
  if (!client) return write_error("", client.error()), 0;
  for (const auto& request : options.at("requests")) submit(*client, request, options.value("step", false));
  while (client->open_streams() > 0) client->poll(std::chrono::milliseconds(100));
  return 0;
}
