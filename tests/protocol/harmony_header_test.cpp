// Headers as text: every form a model writes, the reference's misreadings that are kept on purpose, and each kind of error.
#include "protocol/harmony/header.hpp"

#include <gtest/gtest.h>

namespace althing::protocol::harmony {
namespace {

std::string shown(const ParsedHeader& h) {
  const auto or_dash = [](const std::optional<std::string>& text) { return text.value_or("-"); };
  return std::string(name_of(h.role)) + " name=" + or_dash(h.name) + " to=" + or_dash(h.recipient) + " channel=" + or_dash(h.channel) +
         " type=" + or_dash(h.content_type);
}

std::string parsed(const char* text, std::optional<Role> role = {}) {
  const auto header = parse_header(text, role);
  return header ? shown(*header) : header.error().field + ": " + header.error().message;
}

TEST(HarmonyHeader, every_order_of_a_call_reads_the_same) {
  const std::string call = "assistant name=- to=functions.f channel=commentary type=<|constrain|>json";
  for (const char* text : {
           "assistant<|channel|>commentary to=functions.f <|constrain|>json",
           "assistant to=functions.f<|channel|>commentary <|constrain|>json",
           "assistant<|channel|>commentary to=functions.f<|constrain|>json",
           "assistant to=functions.f<|channel|>commentary<|constrain|>json",
           "  assistant\tto=functions.f \n<|channel|>commentary\r\n<|constrain|>json \n",
       }) {
    EXPECT_EQ(parsed(text), call) << text;
    if (std::string_view(text).starts_with("assistant")) {
      EXPECT_EQ(parsed(text + 9, Role::assistant), call) << text;
    }
  }
  EXPECT_EQ(parsed("assistant<|channel|>commentary to=functions.f code"), "assistant name=- to=functions.f channel=commentary type=code");
}

TEST(HarmonyHeader, plain_roles_and_channels) {
  EXPECT_EQ(parsed("assistant"), "assistant name=- to=- channel=- type=-");
  EXPECT_EQ(parsed("user<|channel|>x"), "user name=- to=- channel=x type=-");
  EXPECT_EQ(parsed("", Role::assistant), "assistant name=- to=- channel=- type=-");
  EXPECT_EQ(parsed("<|channel|>final", Role::assistant), "assistant name=- to=- channel=final type=-");
}

TEST(HarmonyHeader, a_first_word_that_is_no_role_names_a_tool) {
  EXPECT_EQ(parsed("functions.f to=assistant<|channel|>commentary"), "tool name=functions.f to=assistant channel=commentary type=-");
  EXPECT_EQ(parsed("to=functions.f"), "tool name=to=functions.f to=- channel=- type=-");
  EXPECT_EQ(parsed("tool to=assistant"), "tool name=tool to=assistant channel=- type=-");
  EXPECT_EQ(parsed("functions.f tool json"), "tool name=functions.f to=json channel=- type=-");
}

TEST(HarmonyHeader, a_given_role_leaves_the_name_unset_and_may_be_repeated_once) {
  EXPECT_EQ(parsed("tool to=assistant", Role::tool), "tool name=- to=assistant channel=- type=-");
  EXPECT_EQ(parsed("assistant assistant", Role::assistant), "assistant name=- to=assistant channel=- type=-");
  EXPECT_EQ(parsed("user", Role::assistant), "assistant name=- to=user channel=- type=-");
}

TEST(HarmonyHeader, misreadings_of_the_reference_are_kept) {
  EXPECT_EQ(parsed("<|channel|>final json", Role::assistant), "assistant name=- to=json channel=final type=-");
  EXPECT_EQ(parsed("<|channel|>final <|constrain|>json", Role::assistant), "assistant name=- to=<|constrain|>json channel=final type=-");
  EXPECT_EQ(parsed("<|channel|>commentary to=assistant<|channel|>analysis", Role::assistant),
            "assistant name=- to=assistant<|channel|>analysis channel=commentary type=-");
}

TEST(HarmonyHeader, a_channel_ends_at_unicode_whitespace_or_an_angle) {
  EXPECT_EQ(parsed("<|channel|>final\u3000to=x", Role::assistant), "assistant name=- to=x channel=final type=-");
  EXPECT_EQ(parsed("<|channel|>fi\u00e9nal<x", Role::assistant), "assistant name=- to=<x channel=fi\u00e9nal type=-");
  EXPECT_EQ(parsed("<|channel|>final\u0085", Role::assistant), "assistant name=- to=- channel=final type=-");
  // U+FEFF is no whitespace, and words part only at ASCII whitespace.
  EXPECT_EQ(parsed("<|channel|>final\uFEFF", Role::assistant), "assistant name=- to=- channel=final\uFEFF type=-");
  EXPECT_EQ(parsed("assistant\u00a0to=x"), "unknown_role: Unknown role: assistant\u00a0to=x");
}

TEST(HarmonyHeader, errors_by_kind) {
  EXPECT_EQ(parsed(""), "missing_role: message header did not contain a role");
  EXPECT_EQ(parsed("<|channel|>final"), "missing_role: message header did not contain a role");
  EXPECT_EQ(parsed("robot"), "unknown_role: Unknown role: robot");
  EXPECT_EQ(parsed("assistant<|channel|>"), "empty_channel: channel marker present but no channel value found in header");
  EXPECT_EQ(parsed("assistant<|channel|> final"), "empty_channel: channel marker present but no channel value found in header");
  EXPECT_EQ(parsed("<|channel|>c a b c", Role::assistant), "header_leftover: unexpected tokens remaining in message header: Some(\"a\")");
  EXPECT_EQ(parsed("a \"b\\\x0b  c to=d", Role::user),
            "header_leftover: unexpected tokens remaining in message header: Some(\"a \\\"b\\\\\\u{b} c\")");
}

TEST(HarmonyHeader, an_unfinished_message_keeps_its_words) {
  const auto read = [](const char* text) {
    const auto message = parse_unfinished(text, Role::assistant);
    return message ? shown(message->header) + " text=" + message->text : message.error().field;
  };
  EXPECT_EQ(read("<|channel|>final to=x \n y"), "assistant name=- to=- channel=final type=- text=to=x y");
  EXPECT_EQ(read("assistant hello<|constrain|>json"), "assistant name=- to=- channel=- type=- text=hello <|constrain|>json");
  EXPECT_EQ(read("<|channel|>final"), "assistant name=- to=- channel=final type=- text=");
  EXPECT_EQ(read("<|channel|><"), "empty_channel");
}

}  // namespace
}  // namespace althing::protocol::harmony
