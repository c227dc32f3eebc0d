// Requests of the Responses API: what the model is told, and which member an error names.
#include "protocol/openai/responses_request.hpp"

#include <gtest/gtest.h>

#include <span>

#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

Result<ResponsesRequest> read(const Json& body) {
  ResponseStore store;
  return responses_request_from(body, store, "");
}

// role[:name] [to=recipient] [channel] [(type)] | text, one a line.
std::string shown(const std::vector<harmony::Message>& messages) {
  std::string all;
  for (const harmony::Message& message : messages) {
    all += message.name ? *message.name : std::string(name_of(message.role));
    if (message.recipient) all += " to=" + *message.recipient;
    if (message.channel) all += " " + *message.channel;
    if (message.content_type) all += " (" + *message.content_type + ")";
    for (const auto& part : message.content) {
      all += " | ";
      if (const auto* developer = std::get_if<harmony::DeveloperContent>(&part))
        all += developer->instructions.value_or("");
      else
        all += std::get<harmony::TextContent>(part).text;
    }
    all += "\n";
  }
  return all;
}

std::string messages_of(const char* input) {
  const auto request = read({{"input", Json::parse(input)}});
  return request ? shown(request->submit.messages) : "error: " + request.error().message;
}

TEST(OpenAiResponsesRequestTest, input_becomes_messages) {
  const struct {
    const char *input, *messages;
  } cases[] = {
      {R"("Hi")", "user | Hi\n"},
      {R"([{"role": "user", "content": "Hi"}])", "user | Hi\n"},
      {R"([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])",
       "user | a | b\n"},
      {R"([{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": "U"}])",
       "developer | S\ndeveloper | D\nuser | U\n"},
      {R"([{"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]}, {"role": "user", "content": "U"}])",
       "assistant final | a\nuser | U\n"},
      {R"([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}])", "assistant final | No.\n"},
      {R"([{"role": "assistant", "phase": "commentary", "content": "a"}, {"role": "assistant", "phase": "final_answer", "content": "b"},
           {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}])",
       "assistant commentary | a\nassistant final | b\nassistant to=functions.f commentary (json) | {}\n"},
      // Without a phase: what comes before a call is a preamble.
      {R"([{"role": "assistant", "content": "I look."}, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
           {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}"}, {"type": "function_call_output", "call_id": "c", "output": "7"}])",
       "assistant commentary | I look.\nassistant analysis | hm\nassistant to=functions.f commentary (json) | {\"a\":1}\nfunctions.f to=assistant "
       "commentary | 7\n"},
      {R"([{"type": "function_call", "call_id": "c", "name": "f<|channel|>commentary", "arguments": "not json"},
           {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])",
       "assistant to=functions.f commentary (json) | not json\nfunctions.f to=assistant commentary | ab\n"},
      // What says nothing is left out; nulls are absent.
      {R"([{"type": "reasoning", "id": null, "summary": [], "content": null, "encrypted_content": null, "status": null}, {"role": "assistant", "content": null},
           {"role": "user", "content": "U", "id": null, "phase": null, "status": null}])",
       "user | U\n"},
      {R"([{"type": "reasoning", "summary": [], "encrypted_content": "xyz", "content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]}])",
       "assistant analysis | ab\n"},
  };
  for (const auto& one : cases) EXPECT_EQ(messages_of(one.input), one.messages) << one.input;
}

TEST(OpenAiResponsesRequestTest, members_reach_the_engine_and_are_repeated) {
  const auto request = tests::must(read(Json::parse(R"({
    "model": "tiny", "instructions": "Be kind.", "input": "Hi", "stream": true, "store": false, "max_output_tokens": 33, "temperature": 0.5, "top_p": 0.9,
    "seed": 7, "reasoning": {"effort": "high", "summary": "auto"}, "metadata": {"a": "b"}, "user": "u", "truncation": "auto", "parallel_tool_calls": false,
    "tools": [{"type": "function", "name": "f", "description": null, "parameters": {"type": "object", "properties": {}}, "strict": true}],
    "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}, "verbosity": "medium"}, "service_tier": "auto", "unheard_of": 1})")));
  EXPECT_EQ(shown(request.submit.messages), "developer | Be kind.\nuser | Hi\n");
  EXPECT_EQ(request.model, "tiny");
  EXPECT_TRUE(request.stream);
  EXPECT_FALSE(request.store);
  EXPECT_EQ(request.submit.sampling.completion_tokens_max, 33U);
  EXPECT_FLOAT_EQ(request.submit.sampling.temperature.value_or(0), 0.5F);
  EXPECT_FLOAT_EQ(request.submit.sampling.top_p.value_or(0), 0.9F);
  EXPECT_EQ(request.submit.sampling.seed, 7U);
  EXPECT_EQ(request.submit.reasoning_effort, harmony::ReasoningEffort::high);
  ASSERT_EQ(request.submit.tools.size(), 1U);
  EXPECT_EQ(request.submit.tools[0].name, "f");
  EXPECT_TRUE(request.declared.contains("f"));
  const Json& repeated = request.repeated;
  EXPECT_EQ(repeated["instructions"], "Be kind.");
  EXPECT_EQ(repeated["max_output_tokens"], 33);
  EXPECT_EQ(repeated["temperature"], 0.5);
  EXPECT_EQ(repeated["reasoning"], (Json{{"effort", "high"}, {"summary", nullptr}}));
  EXPECT_EQ(repeated["tools"][0]["strict"], true);
  EXPECT_EQ(repeated["truncation"], "auto");
  EXPECT_EQ(repeated["parallel_tool_calls"], false);
  EXPECT_EQ(repeated["metadata"], (Json{{"a", "b"}}));
  EXPECT_EQ(repeated["store"], false);
}

TEST(OpenAiResponsesRequestTest, nulls_are_as_good_as_nothing) {
  Json body = {{"input", "Hi"}};
  for (const char* member : {"model",        "instructions",
                             "stream",       "tools",
                             "tool_choice",  "parallel_tool_calls",
                             "reasoning",    "max_output_tokens",
                             "temperature",  "top_p",
                             "text",         "previous_response_id",
                             "store",        "include",
                             "truncation",   "metadata",
                             "background",   "user",
                             "conversation", "prompt",
                             "top_logprobs", "seed"})
    body[member] = nullptr;
  body["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  body["text"] = {{"format", nullptr}, {"verbosity", nullptr}};
  const auto request = tests::must(read(body));
  EXPECT_TRUE(request.store);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.submit.reasoning_effort);
  EXPECT_EQ(request.submit.sampling.temperature, 1.0F);
  EXPECT_EQ(request.repeated, tests::must(read({{"input", "Hi"}})).repeated);
  EXPECT_EQ(request.repeated["reasoning"]["effort"], "medium");
}

TEST(OpenAiResponsesRequestTest, with_tool_choice_none_the_model_hears_of_no_tools) {
  const auto request = tests::must(read({{"input", "Hi"}, {"tool_choice", "none"}, {"tools", Json::array({{{"type", "function"}, {"name", "f"}}})}}));
  EXPECT_TRUE(request.submit.tools.empty());
  EXPECT_FALSE(request.calls_wanted);
  EXPECT_EQ(request.repeated["tool_choice"], "none");
  EXPECT_EQ(request.repeated["tools"].size(), 1U);
}

TEST(OpenAiResponsesRequestTest, choices_are_not_part_of_this_api) {
  EXPECT_EQ(tests::must(read({{"input", "Hi"}, {"n", 4}})).submit.sampling.n, 1U);
}

struct BadRequest {
  const char *body, *field;
  ErrorCode code = ErrorCode::invalid_argument;
};

void expect_refused(std::span<const BadRequest> cases) {
  for (const BadRequest& one : cases) {
    const auto request = read(Json::parse(one.body));
    ASSERT_FALSE(request) << one.body;
    EXPECT_EQ(request.error().field, one.field) << one.body;
    EXPECT_EQ(request.error().code, one.code) << one.body << ": " << request.error().message;
    EXPECT_NE(request.error().message.find(one.field), std::string::npos) << one.body << ": " << request.error().message;
  }
}

TEST(OpenAiResponsesRequestTest, errors_name_the_item) {
  const BadRequest cases[] = {
      {R"({})", "input"},
      {R"({"input": null})", "input"},
      {R"({"input": 5})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": [{"role": "assistant", "content": ""}]})", "input"},
      {R"({"input": ["x"]})", "input[0]"},
      {R"({"input": [{"content": "x"}]})", "input[0]"},
      {R"({"input": [{"type": 5, "role": "user", "content": "x"}]})", "input[0]"},
      {R"({"input": [{"type": "web_search_call"}]})", "input[0].type", ErrorCode::unsupported},
      {R"({"input": [{"role": "tool", "content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": 5, "content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": "user"}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": 5}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]}]})", "input[0].content[1]",
       ErrorCode::unsupported},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text"}]}]})", "input[0].content[0]"},
      {R"({"input": [{"role": "assistant", "content": "a", "phase": "x"}]})", "input[0].phase"},
      {R"({"input": [{"type": "reasoning", "content": "x"}]})", "input[0].content"},
      {R"({"input": [{"type": "reasoning", "content": [{"type": "text", "text": "x"}]}]})", "input[0].content[0]"},
      {R"({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "xyz"}]})", "input[0].encrypted_content", ErrorCode::unsupported},
      {R"({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]})", "input[0].name"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "<|channel|>x", "arguments": "{}"}]})", "input[0].name"},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})", "input[0].call_id"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]})", "input[0].arguments"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]})", "input[0].call_id"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "f"}, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]})",
       "input[1].output[0]", ErrorCode::unsupported},
      {R"({"input": [{"type": "item_reference", "id": "msg_1"}]})", "input[0].id", ErrorCode::not_found},
  };
  expect_refused(cases);
}

TEST(OpenAiResponsesRequestTest, errors_name_the_member) {
  const BadRequest cases[] = {
      {R"({"input": "x", "model": 5})", "model"},
      {R"({"input": "x", "instructions": ["x"]})", "instructions"},
      {R"({"input": "x", "stream": "yes"})", "stream"},
      {R"({"input": "x", "store": 1})", "store"},
      {R"({"input": "x", "user": 1})", "user"},
      {R"({"input": "x", "parallel_tool_calls": 1})", "parallel_tool_calls"},
      {R"({"input": "x", "background": true})", "background", ErrorCode::unsupported},
      {R"({"input": "x", "conversation": "conv_1"})", "conversation", ErrorCode::unsupported},
      {R"({"input": "x", "prompt": {"id": "p"}})", "prompt", ErrorCode::unsupported},
      {R"({"input": "x", "truncation": "middle"})", "truncation"},
      {R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}})", "text.format.schema",
       ErrorCode::unsupported},
      {R"({"input": "x", "text": {"format": "text"}})", "text.format"},
      {R"({"input": "x", "text": {"verbosity": "low"}})", "text.verbosity", ErrorCode::unsupported},
      {R"({"input": "x", "include": "reasoning"})", "include"},
      {R"({"input": "x", "include": ["nothing"]})", "include[0]"},
      {R"({"input": "x", "include": ["message.output_text.logprobs", "message.output_text.thoughts"]})", "include[1]", ErrorCode::invalid_argument},
      {R"({"input": "x", "metadata": {"a": 1}})", "metadata.a"},
      {R"({"input": "x", "metadata": []})", "metadata"},
      {R"({"input": "x", "reasoning": {"effort": "none"}})", "reasoning.effort", ErrorCode::unsupported},
      {R"({"input": "x", "reasoning": {"effort": "much"}})", "reasoning.effort"},
      {R"({"input": "x", "tools": {}})", "tools"},
      {R"({"input": "x", "tools": ["f"]})", "tools[0]"},
      {R"({"input": "x", "tools": [{"name": "f"}]})", "tools[0].type"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f"}, {"type": "web_search_preview"}]})", "tools[1].type", ErrorCode::unsupported},
      {R"({"input": "x", "tools": [{"type": "mcp"}]})", "tools[0].type", ErrorCode::unsupported},
      {R"({"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]})", "tools[0].name"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": "x"}]})", "tools[0].parameters"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f", "strict": "x"}]})", "tools[0].strict"},
      {R"({"input": "x", "tool_choice": "required"})", "tool_choice", ErrorCode::unsupported},
      {R"({"input": "x", "tool_choice": {"type": "function", "name": "f"}})", "tool_choice", ErrorCode::unsupported},
      {R"({"input": "x", "tool_choice": "some"})", "tool_choice"},
      {R"({"input": "x", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "x", "max_output_tokens": "many"})", "max_output_tokens"},
      {R"({"input": "x", "temperature": "hot"})", "temperature"},
      {R"({"input": "x", "previous_response_id": 5})", "previous_response_id"},
      {R"({"input": "x", "previous_response_id": "resp_1"})", "previous_response_id", ErrorCode::not_found},
  };
  expect_refused(cases);
}

TEST(OpenAiResponsesRequestTest, the_engines_words_are_translated) {
  const Error error = in_responses_terms({ErrorCode::too_large, "sampling.completion_tokens_max is 9", "sampling.completion_tokens_max"});
  EXPECT_EQ(error.field, "max_output_tokens");
  EXPECT_EQ(error.message, "max_output_tokens is 9");
}

// ---- with a store

KeptResponse turn(const std::string& id, const Json& previous, const char* said) {
  KeptResponse kept;
  kept.response = {{"id", id},
                   {"previous_response_id", previous},
                   {"instructions", "Old instructions."},
                   {"output", Json::array({{{"id", "msg_" + id},
                                            {"type", "message"},
                                            {"role", "assistant"},
                                            {"phase", "final_answer"},
                                            {"content", Json::array({{{"type", "output_text"}, {"text", said}}})}}})}};
  kept.input = Json::array();
  kept.messages.push_back({harmony::Role::assistant, {}, {}, "final", {}, {harmony::TextContent{said}}, {}});
  kept.calls["call_" + id] = "f_" + id;
  return kept;
}

TEST(OpenAiResponsesRequestTest, earlier_turns_come_before_the_input_and_their_instructions_do_not) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("ann", turn("resp_1", nullptr, "one")));
  ASSERT_TRUE(store.keep("ann", turn("resp_2", "resp_1", "two")));
  const Json body = {{"previous_response_id", "resp_2"},
                     {"instructions", "New."},
                     {"input", Json::array({{{"type", "function_call_output"}, {"call_id", "call_resp_1"}, {"output", "7"}},
                                            {{"role", "user"}, {"content", "go"}}})}};
  const auto request = tests::must(responses_request_from(body, store, "ann"));
  EXPECT_EQ(shown(request.submit.messages),
            "developer | New.\nassistant final | one\nassistant final | two\nfunctions.f_resp_1 to=assistant commentary | 7\nuser | go\n");
  EXPECT_EQ(request.input.messages.size(), 2U);  // what the store keeps of this turn
  const auto other = responses_request_from(body, store, "bob");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::not_found);
  EXPECT_EQ(other.error().field, "previous_response_id");
}

TEST(OpenAiResponsesRequestTest, references_are_the_items_that_they_name) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("ann", turn("resp_1", nullptr, "one")));
  for (const char* reference : {R"({"type": "item_reference", "id": "msg_resp_1"})", R"({"id": "msg_resp_1"})"}) {
    const Json body = {{"input", Json::array({Json::parse(reference), {{"role", "user"}, {"content", "go"}}})}};
    const auto request = tests::must(responses_request_from(body, store, "ann"));
    EXPECT_EQ(shown(request.submit.messages), "assistant final | one\nuser | go\n");
    EXPECT_EQ(request.input.listed[0]["content"][0]["text"], "one");
    const auto other = responses_request_from(body, store, "bob");
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().field, "input[0].id");
  }
}

}  // namespace
}  // namespace althing::protocol::openai
