// Conversations as JSON, rendered. Whatever they say, only the renderer makes control tokens; a message is the same after JSON; and what a model
// generated can stand for the message that was made of it, and for no other. Behind a first zero byte stand ids as small_format.hpp reads them.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "protocol/harmony/history.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/harmony/replay.hpp"
#include "protocol/wire/json_text.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using namespace althing::protocol::harmony;
using fuzz::require;

const Format& format() { return fuzz::small_format(); }

std::size_t count(const std::vector<TokenId>& ids, TokenId id) { return static_cast<std::size_t>(std::count(ids.begin(), ids.end(), id)); }

void check(const Conversation& conversation) {
  for (const auto policy : {AnalysisHistory::drop_finished_turns, AnalysisHistory::upstream, AnalysisHistory::keep}) {
    const auto kept = kept_messages(conversation.messages, policy).size();
    const auto prompt = render_for_completion(format(), conversation, Role::assistant, {policy});
    const auto training = render_for_training(format(), conversation, {policy});
    require(prompt.ok() == training.ok(), "whether it can be rendered does not depend on what for");
    if (!prompt) return require(!prompt.error().message.empty() && prompt.error().field.starts_with("messages["), "a refusal says what and where");
    require(prompt->boundaries.size() == kept && std::is_sorted(prompt->boundaries.begin(), prompt->boundaries.end()), "each message has an end");
    require(count(prompt->tokens, format().start) == kept + 1 && count(prompt->tokens, format().message) == kept, "one start and one text a message");
    require(count(prompt->tokens, format().end) + count(prompt->tokens, format().call) == kept, "one end a message");
    require(count(prompt->tokens, format().return_) == 0 && count(training->tokens, format().return_) <= 1, "a prompt has no return");
  }
}

// Ids that are a message can stand for it, whatever they are, and for no message that differs.
void replay(std::string_view bytes) {
  auto message = message_of_ids(format(), fuzz::ids_of(bytes));
  if (!message) return require(!message.error().message.empty() && message.error().field == "tokens", "a refusal says why");
  const auto ids = replayed(format(), *message);
  require(ids.ok() && check_replays(format(), {*message}).ok(), "a message can be replayed");
  require(count(*ids, format().start) == 1 && count(*ids, format().return_) == 0, "as one message of a history");
  require(std::search(ids->begin(), ids->end(), message->tokens.begin(), message->tokens.end() - 1) != ids->end(), "word for word");
  check({{*message}});
  const auto again = message_from_json(to_json(*message));
  require(again && replayed(format(), *again).ok() && again->tokens == message->tokens, "also after JSON");
  const auto refuse = [&](Message other) { require(!replayed(format(), other), "not for another message"); };
  Message other = *message;
  other.channel = other.channel.value_or("") + "x";
  refuse(other);
  other = *message;
  other.recipient = other.recipient.value_or("") + "x";
  refuse(other);
  other = *message;
  std::get<TextContent>(other.content.front()).text += "x";
  refuse(other);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 16384) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  replay(text.substr(std::min(zero + 1, text.size())));
  const auto json = wire::parse_json(text.substr(0, zero), wire::json_depth_max);
  if (!json) return 0;
  const auto conversation = conversation_from_json(*json);
  if (!conversation) return require(!conversation.error().message.empty() && !conversation.error().field.empty(), "a refusal says what and where"), 0;
  for (const Message& message : conversation->messages) {
    const auto again = message_from_json(to_json(message));
    require(again && to_json(*again) == to_json(message), "a message survives JSON");
  }
  check(*conversation);
  return 0;
}
