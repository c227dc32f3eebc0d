// What is added to a client's conversation, and what must not be touched. The rendering of the result is tested with the Harmony format;
// here the messages and their parts are looked at. Each test is one regime: with and without system message, with and without developer message,
// with tools in one place, in the other, and in both.
#include "protocol/wire/conversation.hpp"

#include <gtest/gtest.h>

#include "tests/protocol/wire_samples.hpp"

namespace althing::protocol::wire {
namespace {

using harmony::DeveloperContent;
using harmony::Role;
using harmony::SystemContent;
using tests::text_message;
using tests::weather_function;

Submit asking(std::vector<harmony::Message> messages) {
  Submit submit;
  submit.request_id = "r";
  submit.messages = std::move(messages);
  return submit;
}

std::string roles_of(const harmony::Conversation& conversation) {
  std::string roles;
  for (const auto& message : conversation.messages) roles += std::string(harmony::name_of(message.role)) + " ";
  return roles;
}

harmony::Message system_message() {
  harmony::Message message;
  message.role = Role::system;
  message.content.emplace_back(SystemContent{});
  return message;
}

TEST(Conversation, a_system_message_is_put_in_front) {
  Submit submit = asking({text_message(Role::user, "hi")});
  submit.reasoning_effort = harmony::ReasoningEffort::high;
  const auto conversation = conversation_of(submit, "2025-06-28");
  ASSERT_TRUE(conversation.ok()) << conversation.error().message;
  EXPECT_EQ(roles_of(*conversation), "system user ");
  const auto& content = std::get<SystemContent>(conversation->messages[0].content.at(0));
  EXPECT_EQ(content.reasoning_effort, harmony::ReasoningEffort::high);
  EXPECT_EQ(content.conversation_start_date, "2025-06-28");
  EXPECT_TRUE(content.model_identity && content.channel_config);
}

TEST(Conversation, without_effort_and_date_the_defaults_stay) {
  const auto conversation = conversation_of(asking({text_message(Role::user, "hi")}), "");
  ASSERT_TRUE(conversation.ok());
  const auto& content = std::get<SystemContent>(conversation->messages[0].content.at(0));
  EXPECT_EQ(content.reasoning_effort, harmony::ReasoningEffort::medium);
  EXPECT_FALSE(content.conversation_start_date.has_value());
}

TEST(Conversation, the_clients_own_system_message_stays_as_it_is) {
  Submit submit = asking({system_message(), text_message(Role::user, "hi")});
  const auto conversation = conversation_of(submit, "2025-06-28");
  ASSERT_TRUE(conversation.ok());
  EXPECT_EQ(roles_of(*conversation), "system user ");
  EXPECT_FALSE(std::get<SystemContent>(conversation->messages[0].content.at(0)).conversation_start_date.has_value());
  submit.reasoning_effort = harmony::ReasoningEffort::low;
  EXPECT_EQ(conversation_of(submit, "").error().field, "reasoning_effort");
}

TEST(Conversation, tools_get_a_developer_message_after_the_system_message) {
  Submit submit = asking({text_message(Role::user, "hi")});
  submit.tools = {weather_function()};
  auto conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok());
  EXPECT_EQ(roles_of(*conversation), "system developer user ");
  const auto& tools = std::get<DeveloperContent>(conversation->messages[1].content.at(0)).tools;
  ASSERT_EQ(tools.size(), 1U);
  EXPECT_EQ(tools[0].first, "functions");
  EXPECT_EQ(tools[0].second.name, "functions");
  EXPECT_EQ(tools[0].second.functions.at(0).name, "get_current_weather");
  submit.messages.insert(submit.messages.begin(), system_message());
  conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok());
  EXPECT_EQ(roles_of(*conversation), "system developer user ");
}

TEST(Conversation, tools_join_those_of_the_developer_message) {
  Submit submit = tests::chat_submit();
  submit.reasoning_effort.reset();
  const auto conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok()) << conversation.error().message;
  EXPECT_EQ(conversation->messages.size(), submit.messages.size());
  const auto& content = std::get<DeveloperContent>(conversation->messages[1].content.at(0));
  EXPECT_EQ(content.instructions, "Be brief.");
  const auto& functions = content.tools.at(0).second.functions;
  ASSERT_EQ(functions.size(), 2U);
  EXPECT_EQ(functions[0].name, "get_current_weather");
  EXPECT_EQ(functions[1].name, "where_am_i");
}

TEST(Conversation, a_plain_developer_text_becomes_instructions_when_tools_join_it) {
  Submit submit = asking({text_message(Role::developer, "Be brief."), text_message(Role::user, "hi")});
  auto conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok());
  EXPECT_TRUE(std::holds_alternative<harmony::TextContent>(conversation->messages[1].content.at(0)));
  submit.tools = {weather_function()};
  conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok());
  EXPECT_EQ(roles_of(*conversation), "system developer user ");
  EXPECT_EQ(std::get<DeveloperContent>(conversation->messages[1].content.at(0)).instructions, "Be brief.");
}

TEST(Conversation, namespaces_stay_in_order) {
  Submit submit = asking({text_message(Role::developer, ""), text_message(Role::user, "hi")});
  DeveloperContent content;
  content.tools.emplace_back("alpha", harmony::ToolNamespace{"alpha", std::nullopt, {}});
  content.tools.emplace_back("zeta", harmony::ToolNamespace{"zeta", std::nullopt, {}});
  submit.messages[0].content = {content};
  submit.tools = {weather_function()};
  const auto conversation = conversation_of(submit, "");
  ASSERT_TRUE(conversation.ok());
  const auto& tools = std::get<DeveloperContent>(conversation->messages[1].content.at(0)).tools;
  ASSERT_EQ(tools.size(), 3U);
  EXPECT_EQ(tools[1].first, "functions");
}

TEST(Conversation, wrong_input_is_named) {
  EXPECT_EQ(conversation_of(Submit{}, "").error().field, "messages");
  Submit submit = asking({text_message(Role::user, "hi")});
  for (const char* date : {"2025-6-28", "28.06.2025", "2025-06-28T00", "2025/06/28", "abcd-ef-gh"})
    EXPECT_EQ(conversation_of(submit, date).error().field, "date") << date;
  submit.tools = {weather_function(), weather_function()};
  EXPECT_EQ(conversation_of(submit, "").error().field, "tools");
  EXPECT_NE(conversation_of(submit, "").error().message.find("get_current_weather"), std::string::npos);
  for (const char* name : {"", "a b", "f\n", "f;", "f(x)", "ä"}) {
    submit.tools = {weather_function()};
    submit.tools[0].name = name;
    EXPECT_EQ(conversation_of(submit, "").error().field, "tools[0].name") << name;
  }
  // Also twice across the two places where tools can be.
  Submit both = tests::chat_submit();
  both.reasoning_effort.reset();
  both.tools = {weather_function()};
  EXPECT_EQ(conversation_of(both, "").error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace althing::protocol::wire
