// Requests of chat completions as their clients write them, with every null and extra member they send, and answers whose chunks keep their order and
// ids.
#include "protocol/openai/chat_answer.hpp"

#include <gtest/gtest.h>

#include "protocol/openai/sampling.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using wire::Delta;
using wire::MessageEnded;
using wire::MessageStarted;
using wire::Text;

Json chat(const std::string& members = "{}") {
  Json body = {{"model", "tiny"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(Json::parse(members));
  return body;
}

ChatRequest read(const std::string& members) {
  auto request = chat_request_from(chat(members));
  EXPECT_TRUE(request.ok()) << members << ": " << (request.ok() ? "" : request.error().message);
  return request.ok() ? std::move(*request) : ChatRequest{};
}

void refuses(const std::string& members, const std::string& field, ErrorCode code) {
  const auto request = chat_request_from(chat(members));
  ASSERT_FALSE(request.ok()) << members;
  EXPECT_EQ(request.error().field, field) << members;
  EXPECT_EQ(request.error().code, code) << members;
  EXPECT_NE(request.error().message.find(field), std::string::npos) << request.error().message;
}

TEST(ChatRequest, nulls_and_defaults_and_unknown_members_change_nothing) {
  const ChatRequest plain = read("{}");
  EXPECT_EQ(plain.submit.sampling.temperature, 1.0F);
  EXPECT_EQ(plain.submit.sampling.n, 1U);
  EXPECT_FALSE(plain.submit.sampling.completion_tokens_max || plain.submit.reasoning_effort || plain.stream);
  for (const char* member : {"stream",
                             "stream_options",
                             "max_tokens",
                             "max_completion_tokens",
                             "temperature",
                             "top_p",
                             "top_k",
                             "min_p",
                             "n",
                             "seed",
                             "stop",
                             "presence_penalty",
                             "frequency_penalty",
                             "repetition_penalty",
                             "logit_bias",
                             "logprobs",
                             "top_logprobs",
                             "tools",
                             "tool_choice",
                             "parallel_tool_calls",
                             "response_format",
                             "reasoning_effort",
                             "reasoning",
                             "include_reasoning",
                             "user",
                             "metadata",
                             "store",
                             "functions",
                             "function_call",
                             "modalities",
                             "audio",
                             "whatever"}) {
    const ChatRequest request = read("{\"" + std::string(member) + "\": null}");
    EXPECT_TRUE(request.include_reasoning && request.calls_wanted) << member;
    EXPECT_EQ(request.submit.sampling.temperature, 1.0F) << member;
  }
  read(
      R"({"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}, "logprobs": false, "top_logprobs": 0, "stop": [],
           "response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto", "parallel_tool_calls": false, "top_k": -1,
           "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "prediction": {}, "reasoning": {"max_tokens": 5}})");
}

TEST(ChatRequest, a_service_tier_is_a_priority) {
  EXPECT_EQ(read(R"({"service_tier": "priority"})").submit.priority, 2);
  EXPECT_EQ(read(R"({"service_tier": "flex"})").submit.priority, -2);
  for (const char* tier : {"auto", "default", "scale", "of the future"})
    EXPECT_EQ(read(R"({"service_tier": ")" + std::string(tier) + "\"}").submit.priority, 0) << tier;
  refuses(R"({"service_tier": 1})", "service_tier", ErrorCode::invalid_argument);
}

TEST(ChatRequest, what_the_engine_does_not_do_is_refused_by_name) {
  refuses(R"({"response_format": {"type": "grammar"}})", "response_format.type", ErrorCode::unsupported);
  refuses(R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}})", "response_format.json_schema.schema",
          ErrorCode::unsupported);
  refuses(R"({"tool_choice": "required"})", "tool_choice", ErrorCode::unsupported);
  refuses(R"({"tool_choice": {"type": "function", "function": {"name": "f"}}})", "tool_choice", ErrorCode::unsupported);
  refuses(R"({"tools": [{"type": "custom"}]})", "tools[0].type", ErrorCode::unsupported);
  refuses(R"({"functions": []})", "functions", ErrorCode::unsupported);
  refuses(R"({"modalities": ["audio"]})", "modalities", ErrorCode::unsupported);
  refuses(R"({"reasoning_effort": "none"})", "reasoning_effort", ErrorCode::unsupported);
}

TEST(ChatRequest, a_response_format_is_a_grammar_and_a_word_to_the_model) {
  const ChatRequest object = read(R"({"response_format": {"type": "json_object"}})");
  ASSERT_TRUE(object.submit.grammar);
  EXPECT_EQ(*object.submit.grammar, (wire::Grammar{wire::GrammarKind::json_object, ""}));
  const ChatRequest schema = read(
      R"({"response_format": {"type": "json_schema", "json_schema": {"name": "point", "description": "A place.", "strict": true,
          "schema": {"type": "object", "properties": {"y": {"type": "number"}, "x": {"type": "number"}}}}}})");
  ASSERT_TRUE(schema.submit.grammar);
  const std::string text = R"({"type":"object","properties":{"y":{"type":"number"},"x":{"type":"number"}}})";
  EXPECT_EQ(*schema.submit.grammar, (wire::Grammar{wire::GrammarKind::json_schema, text})) << "the order of members is kept";
  ASSERT_EQ(schema.submit.messages.front().role, harmony::Role::developer);
  EXPECT_EQ(std::get<harmony::DeveloperContent>(schema.submit.messages.front().content.front()).instructions,
            "# Response Formats\n\n## point\n\n// A place.\n" + text);
  EXPECT_FALSE(read(R"({"response_format": {"type": "text"}})").submit.grammar);
}

TEST(ChatRequest, wrong_kinds_and_values_are_refused_by_name) {
  const auto invalid = [](const std::string& members, const std::string& field) { refuses(members, field, ErrorCode::invalid_argument); };
  invalid(R"({"temperature": "hot"})", "temperature");
  invalid(R"({"n": 0})", "n");
  invalid(R"({"response_format": {"type": "json_schema"}})", "response_format.json_schema");
  invalid(R"({"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}})", "response_format.json_schema.schema");
  invalid(R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strng"}}}})", "response_format.json_schema.schema");
  invalid(R"({"n": 1.5})", "n");
  invalid(R"({"n": 4000000000})", "n");
  invalid(R"({"max_tokens": 0})", "max_tokens");
  invalid(R"({"max_completion_tokens": -1})", "max_completion_tokens");
  invalid(R"({"seed": 1.5})", "seed");
  invalid(R"({"stop": 5})", "stop");
  invalid(R"({"stop": ["a", 5]})", "stop[1]");
  invalid(R"({"stop": ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"]})", "stop");
  invalid(R"({"logit_bias": [1]})", "logit_bias");
  invalid(R"({"logit_bias": {"x": 1}})", "logit_bias");
  invalid(R"({"logit_bias": {"-1": 1}})", "logit_bias");
  invalid(R"({"logit_bias": {"01": 1}})", "logit_bias");
  invalid(R"({"logit_bias": {"": 1}})", "logit_bias");
  invalid(R"({"logit_bias": {"1": "5"}})", "logit_bias");
  invalid(R"({"logit_bias": {"1": 100.5}})", "logit_bias");
  invalid(R"({"presence_penalty": "much"})", "presence_penalty");
  invalid(R"({"logprobs": 3})", "logprobs");
  invalid(R"({"top_logprobs": 3})", "top_logprobs");
  invalid(R"({"logprobs": false, "top_logprobs": 3})", "top_logprobs");
  invalid(R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs");
  invalid(R"({"logprobs": true, "top_logprobs": 0.5})", "top_logprobs");
  invalid(R"({"logprobs": true, "top_logprobs": -1})", "top_logprobs");
  invalid(R"({"stream": "yes"})", "stream");
  invalid(R"({"stream_options": {"include_usage": 1}})", "stream_options.include_usage");
  invalid(R"({"reasoning_effort": "huge"})", "reasoning_effort");
  invalid(R"({"reasoning": {"effort": "huge"}})", "reasoning.effort");
  invalid(R"({"reasoning": "high"})", "reasoning");
  invalid(R"({"tool_choice": "sometimes"})", "tool_choice");
  invalid(R"({"tools": {}})", "tools");
  invalid(R"({"tools": [1]})", "tools[0]");
  invalid(R"({"tools": [{"type": "function"}]})", "tools[0].function");
  invalid(R"({"tools": [{"type": "function", "function": {"description": "d"}}]})", "tools[0].function.name");
  invalid(R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]})", "tools[0].function.parameters");
  invalid(R"({"messages": null})", "messages");
  invalid(R"({"messages": []})", "messages");
  invalid(R"({"messages": "hi"})", "messages");
}

TEST(ChatRequest, values_arrive_where_they_belong) {
  const ChatRequest request =
      read(R"({"stream": true, "stream_options": {"include_usage": true}, "temperature": 0, "top_p": 0.5, "min_p": 0.1, "top_k": 7, "seed": -1,
      "n": 3, "max_tokens": 5, "max_completion_tokens": 9, "reasoning": {"effort": "high", "exclude": true},
      "tools": [{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "strict": true}},
                {"type": "function", "function": {"name": "g", "description": "d", "parameters": {"type": "object", "properties": {}}}}]})");
  const wire::Sampling& sampling = request.submit.sampling;
  EXPECT_TRUE(request.stream && request.include_usage && !request.include_reasoning);
  EXPECT_EQ(sampling.temperature, 0.0F);
  EXPECT_EQ(sampling.top_p, 0.5F);
  EXPECT_EQ(sampling.top_k, 7U);
  EXPECT_EQ(sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(sampling.n, 3U);
  EXPECT_EQ(sampling.completion_tokens_max, 9U);
  EXPECT_EQ(request.submit.reasoning_effort, harmony::ReasoningEffort::high);
  ASSERT_EQ(request.submit.tools.size(), 2U);
  EXPECT_FALSE(request.submit.tools[0].parameters);
  EXPECT_EQ((*request.submit.tools[1].parameters)["type"], "object");
  EXPECT_EQ(request.declared, (std::set<std::string>{"f", "g"}));
  EXPECT_EQ(read(R"({"reasoning_effort": "minimal"})").submit.reasoning_effort, harmony::ReasoningEffort::low);
  EXPECT_EQ(read(R"({"reasoning_effort": "xhigh", "reasoning": {"effort": "low"}})").submit.reasoning_effort, harmony::ReasoningEffort::high);
  EXPECT_FALSE(read(R"({"include_reasoning": false})").include_reasoning);
  const ChatRequest none = read(R"({"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]})");
  EXPECT_TRUE(none.submit.tools.empty() && !none.calls_wanted);
}

TEST(Sampling, ends_biases_penalties_and_logprobs_arrive) {
  const wire::Sampling sampling =
      read(R"({"stop": ["a", "bc"], "logit_bias": {"17": -100, "2": 1.5}, "presence_penalty": -2, "frequency_penalty": 0.5,
      "repetition_penalty": 1.25, "logprobs": true, "top_logprobs": 20})")
          .submit.sampling;
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(sampling.logit_bias, (std::vector<TokenBias>{{17, -100.0F}, {2, 1.5F}}));
  EXPECT_EQ(sampling.presence_penalty, -2.0F);
  EXPECT_EQ(sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(sampling.logprobs, 20U);
  EXPECT_EQ(read(R"({"stop": "x"})").submit.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(read(R"({"logprobs": true})").submit.sampling.logprobs, 0U);
  EXPECT_FALSE(read(R"({"logprobs": false, "top_logprobs": 0})").submit.sampling.logprobs);
}

TEST(Sampling, errors_of_the_engine_name_members_of_the_request) {
  const Error error = in_request_terms({ErrorCode::invalid_argument, "sampling.completion_tokens_max is 0", "sampling.completion_tokens_max"});
  EXPECT_EQ(error.message, "max_completion_tokens is 0");
  EXPECT_EQ(error.field, "max_completion_tokens");
  EXPECT_EQ(in_request_terms({ErrorCode::too_large, "x", "prompt_tokens"}).field, "prompt");
}

const harmony::Format& format() { return tests::tiny_format(); }
const AnswerHead head{"0123456789abcdef01234567", 1700000000, "tiny"};
const MessageStarted analysis{0, harmony::Role::assistant, "analysis", "", ""};
const MessageStarted preamble{1, harmony::Role::assistant, "commentary", "", ""};
const MessageStarted call{2, harmony::Role::assistant, "commentary", "functions.f", "json"};
const MessageStarted final_answer{1, harmony::Role::assistant, "final", "", ""};

std::vector<Json> events_of(const std::string& bytes) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = bytes.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << bytes;
    const std::string line = bytes.substr(at, end - at);
    EXPECT_TRUE(line.starts_with("data: ") && line.find('\n') == std::string::npos) << line;
    events.push_back(line == "data: [DONE]" ? Json("[DONE]") : Json::parse(line.substr(6)));
    at = end + 2;
  }
  return events;
}

Delta delta(std::uint32_t choice, std::vector<wire::DeltaEvent> events) { return {"r", 1, choice, std::move(events), {}}; }

TEST(ChatAnswer, a_stream_tells_role_reasoning_content_calls_end_usage_in_order_under_one_id) {
  ChatAnswer answer(head, read(R"({"stream": true, "stream_options": {"include_usage": true}})"), format());
  std::string bytes = answer.begin();
  // One delta that crosses messages.
  bytes += answer.push(delta(0, {analysis, Text{0, "so"}, MessageEnded{0}, preamble, Text{1, "I look"}, MessageEnded{1}, call, Text{2, "{\"a\""}}));
  bytes += answer.push(delta(0, {Text{2, ":1}"}, MessageEnded{2}}));
  bytes += *answer.end({"r", 2, FinishReason::stop, {10, 20, 0}, {}, false, {}, 12});
  const auto events = events_of(bytes);
  ASSERT_EQ(events.size(), 9U) << bytes;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["id"], "chatcmpl-0123456789abcdef01234567");
    EXPECT_EQ(events[i]["created"], 1700000000);
    EXPECT_EQ(events[i]["model"], "tiny");
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    if (i < 7) {
      EXPECT_TRUE(events[i]["usage"].is_null());
      EXPECT_EQ(events[i]["choices"][0]["finish_reason"].is_null(), i != 6);
    }
  }
  const auto said = [&](std::size_t i) { return events[i]["choices"][0]["delta"]; };
  EXPECT_EQ(said(0), (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(said(1), (Json{{"reasoning", "so"}}));
  EXPECT_EQ(said(2), (Json{{"content", "I look"}}));
  EXPECT_EQ(
      said(3)["tool_calls"][0],
      Json::parse(R"({"index": 0, "id": "call_0123456789abcdef01234567_0_0", "type": "function", "function": {"name": "f", "arguments": ""}})"));
  EXPECT_EQ(said(4)["tool_calls"][0], Json::parse(R"({"index": 0, "function": {"arguments": "{\"a\""}})"));
  EXPECT_EQ(said(5)["tool_calls"][0], Json::parse(R"({"index": 0, "function": {"arguments": ":1}"}})"));
  EXPECT_EQ(events[8], "[DONE]");
  EXPECT_EQ(events[7]["choices"], Json::array());
  EXPECT_EQ(events[7]["usage"]["total_tokens"], 30);
  EXPECT_EQ(events[7]["usage"]["completion_tokens_details"]["reasoning_tokens"], 12);
  EXPECT_EQ(events[6]["choices"][0]["finish_reason"], "tool_calls");
}

// Chunks of text are written by hand: as the library would write what it reads there.
TEST(ChatAnswer, a_chunk_of_text_is_written_as_the_library_writes_it) {
  for (const char* members : {R"({"stream": true})", R"({"stream": true, "stream_options": {"include_usage": true}})"})
    for (const std::string text : {"plain", "\"\\\n\t", "gr\u00fc\u00dfe \U0001F600"}) {
      ChatAnswer answer({"k", 7, "a \"model\""}, read(members), tests::tiny_format());
      const std::string events = answer.push(Delta{"r",
                                                   1,
                                                   0,
                                                   {MessageStarted{0, harmony::Role::assistant, "analysis", "", ""}, Text{0, text}, MessageEnded{0},
                                                    MessageStarted{1, harmony::Role::assistant, "final", "", ""}, Text{1, text}},
                                                   {}});
      std::vector<std::string> written;
      for (std::size_t at = 0, end; (end = events.find("\n\n", at)) != std::string::npos; at = end + 2)
        written.push_back(events.substr(at, end - at));
      ASSERT_EQ(written.size(), 2U) << events;
      const char* names[] = {"reasoning", "content"};
      for (std::size_t i = 0; i < 2; ++i) {
        const Json json = Json::parse(written[i].substr(6));
        EXPECT_EQ("data: " + json.dump(), written[i]);
        EXPECT_EQ(json["choices"][0]["delta"], (Json{{names[i], text}}));
        EXPECT_EQ(json["model"], "a \"model\"");
        EXPECT_EQ(json.contains("usage"), std::string_view(members).find("usage") != std::string_view::npos);
        EXPECT_TRUE(json["choices"][0]["finish_reason"].is_null() && json["choices"][0]["logprobs"].is_null());
      }
    }
}

TEST(ChatAnswer, a_whole_answer_holds_what_there_is_and_null_or_nothing_for_what_is_not) {
  ChatAnswer answer(head, read("{}"), format());
  EXPECT_EQ(answer.begin(), "");
  EXPECT_EQ(answer.push(delta(0, {analysis, Text{0, "so"}, MessageEnded{0}, call, Text{2, "{\"a\""}})), "");
  EXPECT_EQ(answer.push(delta(0, {Text{2, ":1}"}, MessageEnded{2}})), "");
  const Json json = Json::parse(*answer.end({"r", 2, FinishReason::stop, {10, 20, 0}, {}}));
  EXPECT_EQ(json["object"], "chat.completion");
  const Json& message = json["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["reasoning"], "so");
  EXPECT_EQ(message["tool_calls"],
            Json::parse(R"([{"id": "call_0123456789abcdef01234567_0_0", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}])"));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "tool_calls");

  ChatAnswer plain(head, read(R"({"include_reasoning": false})"), format());
  plain.push(delta(0, {analysis, Text{0, "so"}, MessageEnded{0}, final_answer, Text{1, "yes"}, MessageEnded{1}}));
  const Json whole = Json::parse(*plain.end({"r", 2, FinishReason::length, {10, 20, 0}, {}}));
  EXPECT_EQ(whole["choices"][0]["message"], (Json{{"role", "assistant"}, {"content", "yes"}, {"refusal", nullptr}}));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
}

TEST(ChatAnswer, nobody_is_told_to_call_when_calls_were_not_wanted) {
  ChatAnswer answer(head, read(R"({"tool_choice": "none"})"), format());
  answer.push(delta(0, {call, Text{2, "{}"}, MessageEnded{2}}));
  const Json json = Json::parse(*answer.end({"r", 2, FinishReason::stop, {}, {}}));
  EXPECT_EQ(json["choices"][0]["message"]["content"], "{}");
  EXPECT_FALSE(json["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
}

TEST(ChatAnswer, choices_have_stories_and_ends_of_their_own) {
  for (const bool stream : {false, true}) {
    ChatAnswer answer(head, read(stream ? R"({"n": 2, "stream": true})" : R"({"n": 2})"), format());
    std::string bytes = answer.begin();
    bytes += answer.push(delta(1, {final_answer, Text{1, "b"}}));
    bytes += answer.push(delta(0, {final_answer, Text{1, "a"}, MessageEnded{1}}));
    bytes += answer.push(delta(1, {Text{1, "B"}}));
    const wire::Done done{"r", 3, FinishReason::length, {5, 6, 0}, {{FinishReason::stop, 2, 0, {}}, {FinishReason::length, 4, 0, {}}}};
    const auto last = answer.end(done);
    ASSERT_TRUE(last.ok());
    std::map<int, std::string> text, reason;
    const auto hear = [&](const Json& json) {
      for (const Json& choice : json["choices"]) {
        const int index = choice["index"];
        text[index] += (stream ? choice["delta"] : choice["message"]).value("content", "");
        if (choice["finish_reason"].is_string()) reason[index] += choice["finish_reason"];
      }
    };
    if (!stream) hear(Json::parse(*last));
    if (stream)
      for (const Json& event : events_of(bytes + *last))
        if (event.is_object()) hear(event);
    EXPECT_EQ(text, (std::map<int, std::string>{{0, "a"}, {1, "bB"}})) << stream;
    EXPECT_EQ(reason, (std::map<int, std::string>{{0, "stop"}, {1, "length"}})) << stream;
  }
}

// What the engine sends of a completion that is cut into deltas of so many tokens; token i has the logprob -i/8 and one likely one beside it.
std::vector<Delta> told_of(const std::string& completion, std::size_t every, std::uint32_t choice = 0) {
  wire::DeltaStream stream(format());
  std::vector<Delta> deltas(1);
  const std::vector<TokenId> tokens = tests::ids(format(), completion);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (deltas.back().tokens.size() == every) deltas.emplace_back();
    Delta& to = deltas.back();
    to.choice = choice;
    stream.push(tokens[i], to.events);
    to.tokens.push_back(tokens[i]);
    to.logprobs.push_back({tokens[i], -0.125F * static_cast<float>(i), {{5, -0.5F}}});
  }
  stream.finish(deltas.back().events);
  return deltas;
}

TEST(ChatAnswer, logprobs_are_those_of_the_contents_tokens_in_every_chunking) {
  const std::string completion =
      "<|channel|>analysis<|message|>think 👍<|end|><|start|>assistant<|channel|>commentary<|message|>I 👍 look.<|end|><|start|>assistant"
      "<|channel|>final<|message|>Naïve 東京 👍<|return|>";
  const auto preamble_tokens = tests::ids(format(), "I 👍 look."), final_tokens = tests::ids(format(), "Naïve 東京 👍");
  for (const bool stream : {false, true})
    for (const std::size_t every : {1U, 2U, 3U, 7U, 1000U}) {
      ChatAnswer answer(head, read(stream ? R"({"stream": true, "logprobs": true, "top_logprobs": 1})" : R"({"logprobs": true, "top_logprobs": 1})"),
                        format());
      std::string bytes = answer.begin(), content;
      for (const Delta& part : told_of(completion, every)) bytes += answer.push(part);
      bytes += *answer.end({"r", 2, FinishReason::stop, {3, 9, 0}, {}});
      Json told = Json::array();
      const auto hear = [&](const Json& choice) {
        content += (stream ? choice["delta"] : choice["message"]).value("content", "");
        if (choice["logprobs"].is_null()) return;
        EXPECT_TRUE(choice["logprobs"]["refusal"].is_null());
        for (const Json& one : choice["logprobs"]["content"]) told.push_back(one);
      };
      if (!stream) hear(Json::parse(bytes)["choices"][0]);
      if (stream)
        for (const Json& event : events_of(bytes))
          if (event.is_object()) hear(event["choices"][0]);
      EXPECT_EQ(content, "I 👍 look.\nNaïve 東京 👍");
      ASSERT_EQ(told.size(), preamble_tokens.size() + final_tokens.size()) << stream << every;
      std::string spelled;
      for (std::size_t i = 0; i < told.size(); ++i) {
        const TokenId token = i < preamble_tokens.size() ? preamble_tokens[i] : final_tokens[i - preamble_tokens.size()];
        std::string text;
        for (const Json& byte : told[i]["bytes"]) text += static_cast<char>(byte.get<int>());
        EXPECT_EQ(text, format().tokenizer->bytes_of(token));
        EXPECT_EQ(told[i]["top_logprobs"][0]["logprob"], -0.5);
        if (i > 0) {
          EXPECT_LT(told[i]["logprob"], told[i - 1]["logprob"]);
        }
        spelled += text;
      }
      EXPECT_EQ(spelled, "I 👍 look.Naïve 東京 👍");
    }
}

TEST(ChatAnswer, logprobs_of_a_call_are_not_told_and_there_are_none_unless_asked_for) {
  const std::string called = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>";
  ChatAnswer asked(head, read(R"({"logprobs": true})"), format()), plain(head, read("{}"), format());
  for (ChatAnswer* answer : {&asked, &plain}) answer->push(told_of(called, 100)[0]);
  const wire::Done done{"r", 2, FinishReason::stop, {3, 9, 0}, {}};
  EXPECT_EQ(Json::parse(*asked.end(done))["choices"][0]["logprobs"], Json::parse(R"({"content": [], "refusal": null})"));
  EXPECT_TRUE(Json::parse(*plain.end(done))["choices"][0]["logprobs"].is_null());
}

TEST(ChatAnswer, a_choice_that_failed_fails_the_answer) {
  ChatAnswer answer(head, read(R"({"n": 2})"), format());
  const wire::Done done{
      "r", 3, FinishReason::error, {5, 6, 0}, {{FinishReason::stop, 2, 0, {}}, {FinishReason::error, 4, 0, Error{ErrorCode::nonfinite, "NaN", ""}}}};
  EXPECT_EQ(answer.end(done).error().code, ErrorCode::nonfinite);
  const auto events = events_of(answer.fail(http::reply_for({ErrorCode::nonfinite, "NaN", ""})));
  EXPECT_EQ(events.at(0)["error"]["message"], "NaN");
}

}  // namespace
}  // namespace althing::protocol::openai
