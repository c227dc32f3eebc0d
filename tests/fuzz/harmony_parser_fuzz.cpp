// The Harmony parser under any ids, control and unknown ones among them, strict and not. It must never crash, its deltas must be the content as
// far as that is certain, it must agree with parse_messages, and whatever happened before, the next <|start|> must find it usable.
// Input: one byte of settings, then ids as small_format.hpp reads them.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "protocol/harmony/parser.hpp"
#include "protocol/harmony/recovery.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/tokenizer/utf8.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using namespace althing::protocol::harmony;

const Format& format() { return fuzz::small_format(); }
using fuzz::require;

std::string text_of(const Message& message) {
  require(message.content.size() == 1, "a parsed message has one text");
  return std::get<TextContent>(message.content[0]).text;
}

// Follows one parser and holds what it must give for the message at hand.
class Watch {
 public:
  Watch(std::optional<Role> role, bool strict) : parser(format(), role, strict) {}

  StreamableParser parser;

  Status step(std::optional<TokenId> token) {
    const auto before = parser.state();
    const std::size_t messages = parser.messages().size();
    const Status status = token ? parser.process(*token) : parser.finish();
    require(status.ok() || !status.error().field.empty(), "an error has a kind");
    const bool completed = parser.messages().size() > messages;
    require(parser.messages().size() <= messages + 1, "one message a step");
    if (before == StreamableParser::State::content) {
      require(status.ok(), "content takes any token");
      completed ? complete() : grow(*token);
    }
    if (parser.state() == StreamableParser::State::content && before != StreamableParser::State::content) {
      require(parser.current_role().has_value() && parser.current_content().empty(), "content begins empty, with a role");
      deltas_.clear(), bytes_.clear();
      known_ = true;
    }
    if (parser.state() != StreamableParser::State::content) {
      require(!parser.last_content_delta() && !parser.current_channel() && !parser.current_recipient() && !parser.current_content_type(),
              "nothing is known of a message that is not there");
    }
    return status;
  }

 private:
  void grow(TokenId token) {
    const auto delta = parser.last_content_delta();
    deltas_ += delta.value_or("");
    require(valid_utf8_prefix(deltas_) == deltas_.size(), "deltas are UTF-8");
    if (const auto known = format().tokenizer->bytes_of(token)) {
      bytes_ += *known;
    } else {
      known_ = false;
    }
    require(known_ || !delta, "an unknown id stops the deltas");
  }

  void complete() {
    const std::string content = text_of(parser.messages().back());
    require(content.starts_with(deltas_), "the content begins with its deltas");
    require(valid_utf8_prefix(content) == content.size(), "content is UTF-8");
    std::string storage;
    if (known_) require(content == valid_utf8(bytes_, storage), "content is the lossy decoding of its bytes");
    if (!known_) require(content.substr(deltas_.size()).starts_with(replacement_character), "unknown ids leave a mark");
  }

  std::string deltas_, bytes_;
  bool known_ = true;
};

}  // namespace

// Whatever comes: messages begin, have text and end, and text is UTF-8.
void recover(const std::vector<TokenId>& tokens) {
  RecoveringParser parser(format());
  std::vector<RecoveredEvent> events;
  bool open = false;
  const auto look = [&] {
    for (const RecoveredEvent& event : events) {
      const auto* text = std::get_if<RecoveredText>(&event);
      require(open != std::holds_alternative<RecoveredStart>(event), "messages follow each other");
      if (std::holds_alternative<RecoveredStart>(event)) open = true;
      if (std::holds_alternative<RecoveredEnd>(event)) open = false;
      if (text != nullptr) require(!text->text.empty() && valid_utf8_prefix(text->text) == text->text.size(), "text is UTF-8 and not empty");
    }
    events.clear();
  };
  for (const TokenId token : tokens) {
    parser.push(token, events);
    look();
  }
  parser.finish(events);
  look();
  require(!open, "the last message ends");
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  const bool strict = data[0] & 1;
  const unsigned role_code = data[0] >> 1 & 7;
  const std::optional<Role> role = role_code < 5 ? std::optional(static_cast<Role>(role_code)) : std::nullopt;
  const std::vector<TokenId> tokens = fuzz::ids_of({reinterpret_cast<const char*>(data) + 1, size - 1});

  Watch watch(role, strict);
  bool failed = false;
  for (const TokenId token : tokens) failed |= !watch.step(token);
  require(watch.parser.tokens().size() == tokens.size(), "every token is kept");
  const auto state = nlohmann::json::parse(watch.parser.state_json(), nullptr, false);
  require(state.is_object() && state.contains("state"), "the state is JSON");
  failed |= !watch.step(std::nullopt);

  const auto whole = parse_messages(format(), tokens, role, strict);
  require(whole.ok() == !failed, "parse_messages fails when a step fails");
  if (whole) {
    require(whole->size() == watch.parser.messages().size(), "parse_messages gives the same messages");
    for (const Message& message : *whole) {
      const auto again = message_from_json(to_json(message));
      require(again && to_json(*again) == to_json(message), "messages survive JSON");
      (void)render_message(format(), message, false).ok();
    }
  }

  recover(tokens);

  // Out of a header by its end, then a whole message.
  if (watch.parser.state() == StreamableParser::State::header) (void)watch.step(format().message).ok();
  if (watch.parser.state() == StreamableParser::State::content) (void)watch.step(format().end).ok();
  const std::size_t messages = watch.parser.messages().size();
  for (const TokenId token : format().tokenizer->encode_with_special("<|start|>assistant<|channel|>final<|message|>found<|end|>"))
    require(watch.step(token).ok(), "a whole message is read after anything");
  require(watch.parser.messages().size() == messages + 1 && text_of(watch.parser.messages().back()) == "found", "the message is found");
  return 0;
}
