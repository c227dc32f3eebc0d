// The ids are read by the parser that clients hear of, so what they were told is what they can send back.
#include "protocol/harmony/replay.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "protocol/harmony/recovery.hpp"

namespace althing::protocol::harmony {
namespace {

Error refused(const std::string& why) { return {ErrorCode::invalid_argument, "the message's tokens " + why, "tokens"}; }

std::vector<TokenId> opening_of(const Format& format) {
  std::vector<TokenId> opening = format.tokenizer->encode(name_of(Role::assistant));
  opening.insert(opening.begin(), format.start);
  return opening;
}

std::optional<std::string> unless_empty(std::string text) { return text.empty() ? std::nullopt : std::optional(std::move(text)); }

// One member of the message against what the ids say of it; "" when they agree.
std::string difference(const char* member, const std::optional<std::string>& said, const std::optional<std::string>& generated) {
  if (said.value_or("") == generated.value_or("")) return "";
  const auto shown = [](const std::optional<std::string>& text) { return text ? "'" + text->substr(0, 64) + "'" : std::string("none"); };
  return std::string("are of a message whose ") + member + " is " + shown(generated) + ", and this one's is " + shown(said) +
         "; send the tokens of this message, or none";
}

}  // namespace

Result<Message> message_of_ids(const Format& format, std::span<const TokenId> ids) {
  const std::vector<TokenId> opening = opening_of(format);
  if (ids.size() >= opening.size() && std::equal(opening.begin(), opening.end(), ids.begin())) ids = ids.subspan(opening.size());
  const auto unknown = std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return !format.tokenizer->bytes_of(id); });
  if (unknown != ids.end()) return refused("hold " + std::to_string(*unknown) + ", which no token of this model has as its id");
  if (ids.empty() || !format.is_message_stop(ids.back()) ||
      std::any_of(ids.begin(), ids.end() - 1, [&](TokenId id) { return format.is_message_stop(id); }))
    return refused("must be one message, up to the token that ended it (<|end|>, <|call|> or <|return|>) and no further");
  RecoveringParser parser(format);
  std::vector<RecoveredEvent> events;
  for (const TokenId id : ids) parser.push(id, events);
  const auto& repairs = parser.repairs();
  const auto mended = std::find_if(repairs.begin(), repairs.end(), [](std::uint32_t count) { return count > 0; });
  if (mended != repairs.end())
    return refused("are no well-formed message (" + std::string(name_of(static_cast<Repair>(mended - repairs.begin()))) +
                   "); send it without tokens");
  Message message;
  message.role = Role::assistant;
  message.tokens.assign(ids.begin(), ids.end());
  std::string text;
  std::size_t starts = 0;
  for (RecoveredEvent& event : events) {
    if (auto* started = std::get_if<RecoveredStart>(&event)) {
      ++starts;
      message.role = started->role;
      message.name = unless_empty(std::move(started->name));
      message.channel = unless_empty(std::move(started->channel));
      message.recipient = unless_empty(std::move(started->recipient));
      message.content_type = unless_empty(std::move(started->content_type));
    } else if (const auto* more = std::get_if<RecoveredText>(&event)) {
      text += more->text;
    }
  }
  // A header that was given up before it had a word is nothing to mend, and still a message's beginning.
  if (starts != 1 || message.role != Role::assistant || std::find(ids.begin(), ids.end(), format.start) != ids.end())
    return refused("are not one message of the assistant; send it without tokens");
  message.content.emplace_back(TextContent{std::move(text)});
  return message;
}

Result<std::vector<TokenId>> replayed(const Format& format, const Message& message) {
  if (message.role != Role::assistant || message.name)
    return refused("are there, and only a message of the assistant without a name was generated; leave them out");
  auto generated = message_of_ids(format, message.tokens);
  if (!generated) return std::move(generated).error();
  std::string text;
  for (const Content& part : message.content) {
    const auto* plain = std::get_if<TextContent>(&part);
    if (plain == nullptr) return refused("are there, and a part of the content is no text; leave them out");
    text += plain->text;
  }
  for (const std::string& why :
       {difference("channel", message.channel, generated->channel), difference("recipient", message.recipient, generated->recipient),
        difference("content_type", message.content_type, generated->content_type)})
    if (!why.empty()) return refused(why);
  if (text != std::get<TextContent>(generated->content.front()).text)
    return refused("say another text than the content does; send the tokens of this message, or none");
  std::vector<TokenId> ids = opening_of(format);
  ids.insert(ids.end(), generated->tokens.begin(), generated->tokens.end());
  if (ids.back() != format.end) ids.back() = generated->recipient ? format.call : format.end;
  return ids;
}

Status check_replays(const Format& format, const std::vector<Message>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].tokens.empty()) continue;
    if (auto ids = replayed(format, messages[i]); !ids) {
      Error error = std::move(ids).error();
      const std::string place = "messages[" + std::to_string(i) + "]";
      return Error{error.code, place + ": " + error.message, place + "." + error.field};
    }
  }
  return Ok{};
}

}  // namespace althing::protocol::harmony
