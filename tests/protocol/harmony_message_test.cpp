// Messages as JSON: what is accepted, what is refused and by which name, and that writing and reading again changes nothing.
#include "protocol/harmony/message.hpp"

#include <gtest/gtest.h>

#include "protocol/harmony/builtin_tools.hpp"
#include "protocol/harmony/schema_type.hpp"

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;

Result<Message> read(const char* text) { return message_from_json(Json::parse(text)); }

// The error of a message that must not be accepted.
Error refused(const char* text) {
  const auto message = read(text);
  EXPECT_FALSE(message) << text;
  return message ? Error{} : message.error();
}

TEST(HarmonyMessage, a_string_is_one_text_part) {
  const auto message = read(R"({"role": "user", "content": "hi"})");
  ASSERT_TRUE(message);
  EXPECT_EQ(message->role, Role::user);
  ASSERT_EQ(message->content.size(), 1u);
  EXPECT_EQ(std::get<TextContent>(message->content[0]).text, "hi");
  EXPECT_EQ(to_json(*message).dump(), R"({"role":"user","content":"hi"})");
}

TEST(HarmonyMessage, null_is_absent_and_unknown_members_are_ignored) {
  const auto message = read(R"({"role": "assistant", "name": null, "recipient": null, "channel": "final", "content_type": null,
                                "thinking": {"deep": [1]}, "content": [{"type": "text", "text": "a", "annotations": []}]})");
  ASSERT_TRUE(message);
  EXPECT_FALSE(message->name || message->recipient || message->content_type);
  EXPECT_EQ(message->channel, "final");
}

TEST(HarmonyMessage, every_member_survives_a_round_trip) {
  const char* written[] = {
      R"({"role":"tool","name":"functions.f","recipient":"assistant","channel":"commentary","content_type":"<|constrain|>json","content":"{}"})",
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})",
      R"({"role":"user","content":[]})",
      R"({"role":"system","content":[{"type":"system_content","model_identity":null,"reasoning_effort":null,"knowledge_cutoff":null,)"
      R"("conversation_start_date":"2025-06-28","channel_config":null}]})",
      R"({"role":"system","content":[{"type":"system_content","model_identity":"M","reasoning_effort":"High","knowledge_cutoff":"2024-06",)"
      R"("conversation_start_date":null,"channel_config":{"valid_channels":["final"],"channel_required":false}}]})",
      R"({"role":"developer","content":[{"type":"developer_content","instructions":"I","tools":{"functions":{"name":"functions","description":null,)"
      R"("tools":[{"name":"f","description":"F.","parameters":{"type":"object","properties":{"z":{},"a":{}}}},)"
      R"({"name":"g","description":"","parameters":null}]}}}]})",
  };
  for (const char* text : written) {
    const auto message = read(text);
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(to_json(*message).dump(), text);
  }
}

TEST(HarmonyMessage, what_is_left_out_of_a_system_message_has_its_default) {
  const auto message = read(R"({"role": "system", "content": [{"type": "system_content"}]})");
  ASSERT_TRUE(message);
  const auto& content = std::get<SystemContent>(message->content[0]);
  EXPECT_EQ(content.model_identity, SystemContent{}.model_identity);
  EXPECT_EQ(content.reasoning_effort, ReasoningEffort::medium);
  EXPECT_EQ(content.knowledge_cutoff, "2024-06");
  EXPECT_FALSE(content.conversation_start_date);
  ASSERT_TRUE(content.channel_config);
  EXPECT_EQ(content.channel_config->valid_channels, (std::vector<std::string>{"analysis", "commentary", "final"}));
  EXPECT_TRUE(content.channel_config->channel_required);
}

TEST(HarmonyMessage, reasoning_effort_is_read_in_any_case) {
  for (const char* spelled : {"high", "High", "HIGH", "hIgH"}) {
    const Json json = {{"role", "system"}, {"content", Json::array({{{"type", "system_content"}, {"reasoning_effort", spelled}}})}};
    const auto message = message_from_json(json);
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(std::get<SystemContent>(message->content[0]).reasoning_effort, ReasoningEffort::high);
  }
}

TEST(HarmonyMessage, namespaces_come_in_ascending_order_and_builtin_names_stand_for_theirs) {
  const auto message = read(R"({"role": "system", "content": [{"type": "system_content", "tools": {
      "python": "BUILTIN_PYTHON", "browser": "BUILTIN_BROWSER", "abacus": {"name": "abacus"}}}]})");
  ASSERT_TRUE(message) << message.error().message;
  const auto& tools = std::get<SystemContent>(message->content[0]).tools;
  ASSERT_EQ(tools.size(), 3u);
  EXPECT_EQ(tools[0].first, "abacus");
  EXPECT_TRUE(tools[0].second.functions.empty());
  EXPECT_EQ(tools[1].second.description, browser_tools().description);
  EXPECT_EQ(tools[1].second.functions.size(), 3u);
  EXPECT_EQ(tools[2].second.description, python_tools().description);
}

TEST(HarmonyMessage, a_wrong_type_is_named_by_its_path) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"([])", "message"},
      {R"({"content": "x"})", "role"},
      {R"({"role": 3, "content": "x"})", "role"},
      {R"({"role": "robot", "content": "x"})", "role"},
      {R"({"role": "user"})", "content"},
      {R"({"role": "user", "content": null})", "content"},
      {R"({"role": "user", "content": 5})", "content"},
      {R"({"role": "user", "content": "x", "name": 5})", "name"},
      {R"({"role": "user", "content": "x", "channel": ["final"]})", "channel"},
      {R"({"role": "user", "content": "x", "recipient": {}})", "recipient"},
      {R"({"role": "user", "content": "x", "content_type": true})", "content_type"},
      {R"({"role": "user", "content": ["x"]})", "content[0]"},
      {R"({"role": "assistant", "content": "x", "tokens": "7"})", "tokens"},
      {R"({"role": "assistant", "content": "x", "tokens": [1, -1]})", "tokens[1]"},
      {R"({"role": "assistant", "content": "x", "tokens": [4294967296]})", "tokens[0]"},
      {R"({"role": "assistant", "content": "x", "tokens": [1.5]})", "tokens[0]"},
      {R"({"role": "user", "content": [{"text": "x"}]})", "content[0].type"},
      {R"({"role": "user", "content": [{"type": "image"}]})", "content[0].type"},
      {R"({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]})", "content[1].text"},
      {R"({"role": "system", "content": [{"type": "system_content", "reasoning_effort": "none"}]})", "content[0].reasoning_effort"},
      {R"({"role": "system", "content": [{"type": "system_content", "reasoning_effort": 1}]})", "content[0].reasoning_effort"},
      {R"({"role": "system", "content": [{"type": "system_content", "channel_config": []}]})", "content[0].channel_config"},
      {R"({"role": "system", "content": [{"type": "system_content", "channel_config": {"valid_channels": ["a", 1]}}]})",
       "content[0].channel_config.valid_channels[1]"},
      {R"({"role": "system", "content": [{"type": "system_content", "channel_config": {"channel_required": "yes"}}]})",
       "content[0].channel_config.channel_required"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "instructions": 1}]})", "content[0].instructions"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "tools": []}]})", "content[0].tools"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "tools": {"functions": "ALL"}}]})", "content[0].tools.functions"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "tools": {"functions": {}}}]})", "content[0].tools.functions.name"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "tools": {"functions": {"name": "functions", "tools": {}}}}]})",
       "content[0].tools.functions.tools"},
      {R"({"role": "developer", "content": [{"type": "developer_content", "tools": {"functions": {"name": "functions", "tools": [{"name": "f"}]}}}]})",
       "content[0].tools.functions.tools[0].description"},
  };
  for (const auto& [text, path] : wrong) {
    const Error error = refused(text);
    EXPECT_EQ(error.code, ErrorCode::invalid_argument) << text;
    EXPECT_EQ(error.field, path) << text;
    EXPECT_NE(error.message.find(path), std::string::npos) << error.message;
  }
}

TEST(HarmonyMessage, a_long_or_broken_value_is_cut_in_the_error) {
  const auto message = message_from_json(Json{{"role", std::string(10'000, '\xC3')}, {"content", "x"}});
  ASSERT_FALSE(message);
  EXPECT_LT(message.error().message.size(), 200u);
}

TEST(HarmonyMessage, parameters_nested_too_deep_are_refused_before_they_are_copied) {
  constexpr int levels = 200'000;
  std::string parameters;
  for (int i = 0; i < levels; ++i) parameters += '[';
  for (int i = 0; i < levels; ++i) parameters += ']';
  const std::string text =
      R"({"role": "developer", "content": [{"type": "developer_content", "tools": {"functions": {"name": "functions", "tools": [)"
      R"({"name": "f", "description": "", "parameters": )" +
      parameters + "}]}}}]}";
  const Error error = refused(text.c_str());
  EXPECT_EQ(error.field, "content[0].tools.functions.tools[0].parameters");
}

TEST(HarmonyConversation, is_a_list_or_an_object_with_messages) {
  const auto list = conversation_from_json(Json::parse(R"([{"role": "user", "content": "a"}])"));
  const auto object = conversation_from_json(Json::parse(R"({"messages": [{"role": "user", "content": "a"}], "id": 1})"));
  ASSERT_TRUE(list && object);
  EXPECT_EQ(list->messages.size(), 1u);
  EXPECT_EQ(object->messages.size(), 1u);
  for (const char* text : {"3", "{}", R"({"messages": null})", R"({"messages": {}})"}) {
    const auto conversation = conversation_from_json(Json::parse(text));
    ASSERT_FALSE(conversation) << text;
    EXPECT_EQ(conversation.error().field, "messages");
  }
  const auto second = conversation_from_json(Json::parse(R"([{"role": "user", "content": "a"}, {"role": "user", "content": 1}])"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().field, "messages[1].content");
}

TEST(HarmonyRole, names_and_back) {
  for (const Role role : {Role::system, Role::developer, Role::user, Role::assistant, Role::tool}) EXPECT_EQ(role_of(name_of(role)), role);
  EXPECT_FALSE(role_of("Assistant"));
  EXPECT_FALSE(role_of(""));
}

}  // namespace
}  // namespace althing::protocol::harmony
