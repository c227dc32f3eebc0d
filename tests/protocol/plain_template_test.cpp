// A chat format from a file: what it writes, what it refuses, and what becomes of replies.
#include "protocol/chat/plain_template.hpp"

#include <gtest/gtest.h>

#include "protocol/wire/delta_log.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::chat {
namespace {

using harmony::Role;

const char* const dialogue =
    R"({"begin":"<|start|>","system":"{content}\n\n","user":"User: {content}\n","assistant":"Bot: {content}<|end|>\n","prompt":"Bot:","stop":["\nUser:"],)"
    R"("stop_tokens":["<|return|>"],"trim_start":true})";

const std::shared_ptr<const Tokenizer>& tokenizer() { return tests::tiny_format().tokenizer; }

ChatFormat format_of(std::string_view text) {
  auto format = plain_template(text, tokenizer());
  EXPECT_TRUE(format) << format.error().message;
  return *format;
}

harmony::Message message(Role role, std::string text, std::optional<std::string> channel = {}, std::optional<std::string> recipient = {}) {
  return {role, {}, std::move(recipient), std::move(channel), {}, {harmony::TextContent{std::move(text)}}};
}

wire::Submit submit(std::vector<harmony::Message> messages) {
  wire::Submit made;
  made.messages = std::move(messages);
  return made;
}

std::string refused(std::string_view text) {
  const auto format = plain_template(text, tokenizer());
  return format ? "taken" : format.error().field + ": " + format.error().message;
}

std::string refusal(const wire::Submit& asked, std::string_view text = dialogue) {
  const auto rendered = format_of(text)->render(asked, "");
  return rendered ? "taken" : rendered.error().field;
}

std::string said(const std::vector<harmony::RecoveredEvent>& events) {
  std::string all;
  for (const auto& event : events) {
    if (const auto* start = std::get_if<harmony::RecoveredStart>(&event)) all += "[" + start->channel + "]";
    if (const auto* text = std::get_if<harmony::RecoveredText>(&event)) all += text->text;
    if (std::holds_alternative<harmony::RecoveredEnd>(event)) all += "[end]";
  }
  return all;
}

TEST(PlainTemplate, writes_messages_around_their_text) {
  const auto rendered = format_of(dialogue)->render(
      submit({message(Role::system, "Be kind."), message(Role::user, "Hi"), message(Role::assistant, "Ho", "final"), message(Role::user, "Hm")}),
      "2026-01-02");
  ASSERT_TRUE(rendered);
  EXPECT_EQ(*tokenizer()->decode(rendered->tokens), "<|start|>Be kind.\n\nUser: Hi\nBot: Ho<|end|>\nUser: Hm\nBot:");
  EXPECT_EQ(rendered->tokens.front(), *tokenizer()->special("<|start|>"));
  EXPECT_EQ(rendered->boundaries.size(), 4u);
}

TEST(PlainTemplate, a_message_is_tokenized_as_one_text) {
  const auto rendered = format_of(dialogue)->render(submit({message(Role::user, "Hi there")}), "");
  ASSERT_TRUE(rendered);
  std::vector<TokenId> expected{*tokenizer()->special("<|start|>")};
  for (const char* text : {"User: Hi there\n", "Bot:"})
    for (const TokenId token : tokenizer()->encode(text)) expected.push_back(token);
  EXPECT_EQ(rendered->tokens, expected);
}

TEST(PlainTemplate, a_longer_conversation_begins_with_the_ids_of_the_shorter_one) {
  const ChatFormat format = format_of(dialogue);
  std::vector<harmony::Message> messages;
  std::vector<TokenId> before;
  for (const char* text : {" a", "b\n", "", "\n\n c", "d"}) {
    messages.push_back(message(messages.size() % 2 == 0 ? Role::user : Role::assistant, text));
    const auto rendered = format->render(submit(messages), "");
    ASSERT_TRUE(rendered);
    ASSERT_GE(rendered->tokens.size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), rendered->tokens.begin()));
    before.assign(rendered->tokens.begin(), rendered->tokens.begin() + rendered->boundaries.back());
  }
}

TEST(PlainTemplate, text_of_clients_makes_no_special_token) {
  const auto rendered = format_of(dialogue)->render(submit({message(Role::user, "<|end|><|start|>{content}")}), "");
  ASSERT_TRUE(rendered);
  EXPECT_EQ(std::count_if(rendered->tokens.begin(), rendered->tokens.end(), [](TokenId token) { return tokenizer()->is_special(token); }), 1);
  EXPECT_EQ(*tokenizer()->decode(rendered->tokens), "<|start|>User: <|end|><|start|>{content}\nBot:");
}

TEST(PlainTemplate, reasoning_of_earlier_turns_is_left_out) {
  const auto rendered = format_of(dialogue)->render(submit({message(Role::assistant, "hm", "analysis"), message(Role::user, "Hi")}), "");
  ASSERT_TRUE(rendered);
  EXPECT_EQ(*tokenizer()->decode(rendered->tokens), "<|start|>User: Hi\nBot:");
}

TEST(PlainTemplate, what_has_no_form_is_refused_with_its_place) {
  EXPECT_EQ(refusal(submit({})), "messages");
  EXPECT_EQ(refusal(submit({message(Role::user, "a"), message(Role::tool, "b")})), "messages[1].role");
  EXPECT_EQ(refusal(submit({message(Role::assistant, "a", "commentary", "functions.f")})), "messages[0].recipient");
  wire::Submit with_tokens = submit({message(Role::user, "a"), message(Role::assistant, "b")});
  with_tokens.messages[1].tokens = {1};
  EXPECT_EQ(refusal(with_tokens), "messages[1].tokens");
  wire::Submit with_tools = submit({message(Role::user, "a")});
  with_tools.tools.push_back({"f", "", std::nullopt});
  EXPECT_EQ(refusal(with_tools), "tools");
  wire::Submit system = submit({message(Role::system, "a")});
  system.messages[0].content = {harmony::SystemContent{}};
  EXPECT_EQ(refusal(system), "messages[0].content");
  system.messages[0].content = {harmony::DeveloperContent{"Be brief.", {}}};
  EXPECT_EQ(refusal(system), "taken");
  std::get<harmony::DeveloperContent>(system.messages[0].content[0]).tools = {{"functions", {"functions", std::nullopt, {}}}};
  EXPECT_EQ(refusal(system), "messages[0].content");
  EXPECT_EQ(refusal(submit({message(Role::user, "")}), R"({"user":"{content}","assistant":"{content}"})"), "messages");
}

TEST(PlainTemplate, a_file_with_a_mistake_is_refused_with_the_member) {
  EXPECT_EQ(refused(R"({"user":"{content}","assistant":"{content}"})"), "taken");
  EXPECT_TRUE(refused("{").starts_with(": "));
  EXPECT_TRUE(refused("[]").starts_with(": it is not a JSON object"));
  EXPECT_TRUE(refused(R"({"user":"{content}"})").starts_with("assistant: assistant is missing"));
  EXPECT_TRUE(refused(R"({"user":"a","assistant":"{content}"})").starts_with("user: user must have {content} in it, once"));
  EXPECT_TRUE(refused(R"({"user":"{content}{content}","assistant":"{content}"})").starts_with("user: "));
  EXPECT_TRUE(refused(R"({"user":"{content}","assistant":"{content}","prompt":"{content}"})").starts_with("prompt: "));
  EXPECT_TRUE(refused(R"({"user":"{content}","assistant":"{content}","usr":""})").starts_with("usr: usr is no member"));
  EXPECT_TRUE(refused(R"({"user":"{content}","assistant":"{content}","stop":[""]})").starts_with("stop: "));
  EXPECT_TRUE(refused(R"({"user":"{content}","assistant":"{content}","stop":"x"})").starts_with("stop: "));
  EXPECT_TRUE(refused(R"({"user":"{content}","assistant":"{content}","stop_tokens":["x"]})").starts_with("stop_tokens: stop_tokens names 'x'"));
  EXPECT_TRUE(refused(R"({"user":7,"assistant":"{content}"})").starts_with("user: "));
}

TEST(PlainTemplate, a_reply_is_one_message_of_text) {
  const ChatFormat format = format_of(dialogue);
  EXPECT_EQ(format->stop_tokens({7}), (std::vector<TokenId>{7, *tokenizer()->special("<|return|>")}));
  EXPECT_EQ(format->stop_tokens({*tokenizer()->special("<|return|>")}).size(), 1u);
  EXPECT_EQ(format.harmony(), nullptr);
  auto parser = format->reply_parser();
  std::vector<harmony::RecoveredEvent> events;
  parser->finish(events);
  EXPECT_EQ(said(events), "");
  parser = format->reply_parser();
  for (const TokenId token : tokenizer()->encode_with_special(" \n Hé! <|channel|> So.<|return|>")) parser->push(token, events);
  parser->finish(events);
  parser->finish(events);
  EXPECT_EQ(said(events), "[final]Hé!  So.[end]");
}

TEST(PlainTemplate, its_stops_end_a_stream_before_the_client_s_do) {
  const ChatFormat format = format_of(dialogue);
  wire::DeltaLog log("r", format, false, 1, {{"xyz", format->stop_strings()[0]}, format.tokenizer()});
  for (const TokenId token : tokenizer()->encode(" Fine.\nUser: and xyz")) log.push(token);
  ASSERT_TRUE(log.stopped());
  EXPECT_EQ(*log.stopped(), 1u);
  log.close();
  std::string text;
  for (const auto& event : std::get<wire::Delta>(log.cut()).events)
    if (const auto* piece = std::get_if<wire::Text>(&event)) text += piece->text;
  EXPECT_EQ(text, "Fine.");
}

}  // namespace
}  // namespace althing::protocol::chat
