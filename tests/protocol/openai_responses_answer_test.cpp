// The route of the Responses API as one: request in, bytes out, and what the next request finds.
#include "protocol/openai/responses_answer.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "protocol/harmony/render.hpp"
#include "protocol/openai/turn_tokens.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "tests/protocol/harmony_support.hpp"
#include "tests/protocol/responses_events.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

const char* const reply_with_call =
    "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    "<|constrain|>json<|message|>{\"a\":1}<|call|>";
const char* const reply_final = "<|channel|>analysis<|message|>Seven.<|end|><|start|>assistant<|channel|>final<|message|>It is 7.<|return|>";

struct Server {
  std::shared_ptr<ResponseStore> store = std::make_shared<ResponseStore>();
  int made = 0;

  // What the client reads: the model says `text`, and ends for `reason`.
  std::string answer(const Json& body, const std::string& text, FinishReason reason = FinishReason::stop, const std::string& owner = "ann",
                     std::vector<harmony::Message>* prompt = nullptr) {
    AnswerHead head{"key" + std::to_string(made++), 1'700'000'000, "tiny"};
    Job job = tests::must(responses_job(body, head, {store, owner}, tests::tiny_format()));
    if (prompt != nullptr) *prompt = job.submit.messages;
    std::string words = job.answer->begin();
    wire::DeltaStream stream(tests::tiny_format());
    const std::vector<TokenId> tokens = tests::ids(tests::tiny_format(), text);
    wire::Delta delta;
    for (const TokenId token : tokens) {
      stream.push(token, delta.events);
      delta.tokens.push_back(token);
      if (job.submit.sampling.logprobs) delta.logprobs.push_back({token, -1.5F, {{token, -1.5F}}});
      if (delta.tokens.size() < 3) continue;
      words += job.answer->push(delta);
      delta = {};
    }
    stream.finish(delta.events);
    words += job.answer->push(delta);
    wire::Done done;
    done.reason = reason;
    done.usage = {11, static_cast<std::uint32_t>(tokens.size()), 0};
    done.reasoning_tokens = 2;
    return words + tests::must(job.answer->end(done));
  }
};

// Events of a stream; every one has to be two lines and an empty one.
std::vector<Json> events_in(std::string words) {
  std::vector<Json> events;
  while (!words.empty()) {
    const std::size_t end = words.find("\n\n");
    if (end == std::string::npos) {
      ADD_FAILURE() << "no empty line at the end: " << words;
      break;
    }
    const std::string event = words.substr(0, end);
    words.erase(0, end + 2);
    const std::size_t line = event.find("\ndata: ");
    EXPECT_TRUE(event.starts_with("event: ") && line != std::string::npos && event.find('\n', line + 1) == std::string::npos) << event;
    events.push_back(Json::parse(event.substr(line + 7)));
    EXPECT_EQ(event.substr(7, line - 7), events.back()["type"]);
  }
  return events;
}

Json calling(Json body) {
  body["tools"] = Json::array({{{"type", "function"}, {"name", "f"}, {"parameters", nullptr}}});
  return body;
}

TEST(OpenAiResponsesAnswerTest, a_stream_is_good_and_ends_with_what_get_gives) {
  Server server;
  const auto events = events_in(server.answer(calling({{"input", "Hi"}, {"stream", true}}), reply_with_call));
  const Json kept = tests::must(server.store->get("ann", "resp_key0"));
  EXPECT_EQ(tests::wrong_events(events, kept), "");
  EXPECT_EQ(kept["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_EQ(kept["tools"][0]["name"], "f");
}

TEST(OpenAiResponsesAnswerTest, without_a_stream_the_body_is_the_same_response) {
  Server streamed, whole;
  const auto events = events_in(streamed.answer({{"input", "Hi"}, {"stream", true}}, reply_final));
  const Json body = Json::parse(whole.answer({{"input", "Hi"}}, reply_final));
  EXPECT_EQ(body, events.back()["response"]);
  EXPECT_EQ(body["output"][1]["content"][0]["text"], "It is 7.");
}

TEST(OpenAiResponsesAnswerTest, logprobs_stand_in_deltas_and_in_the_response) {
  Server server;
  const std::string text = "<|channel|>analysis<|message|>Seven.<|end|><|start|>assistant<|channel|>final<|message|>It is 👍 7.<|return|>";
  const auto content = tests::ids(tests::tiny_format(), "It is 👍 7.");
  const Json asked = {{"input", "Hi"}, {"stream", true}, {"include", {"message.output_text.logprobs"}}, {"top_logprobs", 1}};
  const auto events = events_in(server.answer(asked, text));
  const Json kept = tests::must(server.store->get("ann", "resp_key0"));
  EXPECT_EQ(tests::wrong_events(events, kept), "");
  const Json& told = kept["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(told.size(), content.size());
  EXPECT_EQ(told[0]["token"], tests::tiny_format().tokenizer->bytes_of(content[0]).value());
  EXPECT_EQ(told[0]["top_logprobs"][0]["logprob"], -1.5);
  EXPECT_EQ(kept["top_logprobs"], 1);
  const auto read = [&](const Json& body) { return responses_request_from(body, *server.store, "ann"); };
  EXPECT_EQ(read({{"input", "Hi"}, {"include", {"message.output_text.logprobs"}}})->submit.sampling.logprobs, 0U);
  EXPECT_EQ(read({{"input", "Hi"}, {"top_logprobs", 3}})->submit.sampling.logprobs, 3U);
  EXPECT_FALSE(read({{"input", "Hi"}, {"top_logprobs", 0}})->submit.sampling.logprobs);
  EXPECT_EQ(read({{"input", "Hi"}, {"top_logprobs", 21}}).error().field, "top_logprobs");
}

TEST(OpenAiResponsesAnswerTest, a_conversation_goes_on_from_its_last_response) {
  Server server;
  const Json first = Json::parse(server.answer(calling({{"input", "What is f?"}, {"instructions", "Old."}}), reply_with_call));
  const Json call = first["output"][1];
  std::vector<harmony::Message> prompt;
  const Json output = Json::array({{{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "7"}}});
  const Json second = Json::parse(
      server.answer(calling({{"input", output}, {"previous_response_id", first["id"]}}), reply_final, FinishReason::stop, "ann", &prompt));
  ASSERT_EQ(prompt.size(), 4U);
  EXPECT_EQ(tests::text_of(prompt[0]), "What is f?");
  EXPECT_EQ(prompt[1].channel, "analysis");
  EXPECT_EQ(prompt[2].recipient, "functions.f");
  EXPECT_EQ(prompt[3].name, "functions.f");
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  const auto history = tests::must(server.store->history("ann", second["id"]));
  ASSERT_EQ(history.messages.size(), 6U);
  const Json items = tests::must(server.store->input_items("ann", first["id"], {}));
  EXPECT_EQ(items["data"][0]["content"], Json::array({{{"type", "input_text"}, {"text", "What is f?"}}}));
  EXPECT_TRUE(items["data"][0]["id"].get<std::string>().starts_with("msg_key0_"));
}

TEST(OpenAiResponsesAnswerTest, generated_messages_keep_their_tokens) {
  Server server;
  const Json response = Json::parse(server.answer({{"input", "Hi"}}, reply_final));
  const auto history = tests::must(server.store->history("ann", response["id"]));
  ASSERT_EQ(history.messages.size(), 3U);
  EXPECT_TRUE(history.messages[0].tokens.empty());
  EXPECT_EQ(history.messages[1].tokens, tests::ids(tests::tiny_format(), "<|channel|>analysis<|message|>Seven.<|end|>"));
  EXPECT_EQ(history.messages[2].tokens, tests::ids(tests::tiny_format(), "<|channel|>final<|message|>It is 7.<|return|>"));
}

// What the reply makes of the ids, with the tokens that its messages are given.
std::vector<harmony::Message> messages_of(const char* text) {
  const harmony::Format& format = tests::tiny_format();
  wire::DeltaStream stream(format);
  ResponsesReply reply({0, "m", Json::object()}, {{"f"}, true},
                       [made = 0](std::string_view kind) mutable { return std::string(kind) + std::to_string(made++); });
  std::vector<wire::DeltaEvent> events;
  const auto tokens = tests::ids(format, text);
  for (const TokenId token : tokens) stream.push(token, events);
  stream.finish(events);
  ResponsesReply::Events told;
  for (const auto& event : events) reply.push(event, told);
  reply.end(FinishReason::stop, {}, told);
  auto messages = reply.messages();
  add_tokens(format, tokens, messages);
  return messages;
}

TEST(OpenAiResponsesAnswerTest, tokens_are_given_up_where_it_is_not_certain_whose_they_are) {
  for (const char* text :
       {"<|channel|>final<|message|>cut", "<|channel|>analysis<|message|>a<|end|><|return|>", "no markup", "", "<|channel|>final text<|end|>",
        "<|channel|>analysis to=functions.f<|message|>{}<|call|>", "<|channel|>commentary to=f<|message|>{}<|call|>"})
    for (const harmony::Message& message : messages_of(text)) EXPECT_TRUE(message.tokens.empty()) << text;
  const auto half = messages_of("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final text<|end|>");
  ASSERT_EQ(half.size(), 2U);
  EXPECT_FALSE(half[0].tokens.empty()) << "one message that is none takes the others' ids from nobody";
  EXPECT_TRUE(half[1].tokens.empty());
}

TEST(OpenAiResponsesAnswerTest, a_calls_content_type_is_the_one_that_was_generated) {
  for (const char* type : {"", " json", " <|constrain|>json", " code"}) {
    const std::string text = std::string("<|channel|>commentary to=functions.f") + type + "<|message|>{}<|call|>";
    const auto messages = messages_of(text.c_str());
    ASSERT_EQ(messages.size(), 1U);
    EXPECT_EQ(messages[0].tokens, tests::ids(tests::tiny_format(), text));
    EXPECT_EQ(messages[0].content_type.value_or(""), type[0] == '\0' ? "" : type + 1);
  }
}

TEST(OpenAiResponsesAnswerTest, the_next_turns_prompt_repeats_what_was_generated) {
  Server server;
  const Json first = Json::parse(server.answer({{"input", "Hi"}}, reply_final));
  auto request = responses_request_from({{"input", "And?"}, {"previous_response_id", first["id"]}}, *server.store, "ann");
  ASSERT_TRUE(request) << request.error().message;
  const auto prompt = tests::must(harmony::render_conversation(tests::tiny_format(), {request->submit.messages}, {harmony::AnalysisHistory::keep}));
  EXPECT_EQ(tests::must(tests::tiny_format().tokenizer->decode(prompt.tokens)),
            "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>Seven.<|end|><|start|>assistant<|channel|>final<|"
            "message|>It is "
            "7.<|end|><|start|>user<|message|>And?<|end|>");
}

TEST(OpenAiResponsesAnswerTest, what_shall_not_be_stored_is_not) {
  Server server;
  const Json response = Json::parse(server.answer({{"input", "Hi"}, {"store", false}}, reply_final));
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(server.store->size(), 0U);
}

TEST(OpenAiResponsesAnswerTest, a_cut_response_is_stored_without_its_broken_call) {
  Server server;
  const Json response = Json::parse(server.answer(
      {{"input", "Hi"}},
      "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\"",
      FinishReason::length));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
  EXPECT_EQ(tests::must(server.store->history("ann", response["id"])).messages.size(), 2U);
  const auto again = responses_request_from(
      {{"previous_response_id", response["id"]},
       {"input", Json::array({{{"type", "function_call_output"}, {"call_id", response["output"][1]["call_id"]}, {"output", "7"}}})}},
      *server.store, "ann");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().field, "input[0].call_id");
}

// Anything where anything else was expected: an answer or a typed error, never an exception.
TEST(OpenAiResponsesAnswerTest, no_shape_of_a_request_breaks_it) {
  const Json good = Json::parse(R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "summary": [],
    "content": [{"type": "reasoning_text", "text": "b"}]}, {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "7"}]}, {"type": "item_reference", "id": "msg_key0_1"},
    {"role": "assistant", "phase": "commentary", "content": "x"}], "instructions": "i", "model": "m", "stream": true, "store": true, "metadata": {"k": "v"},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}], "tool_choice": "auto", "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "previous_response_id": "resp_key0", "max_output_tokens": 5, "temperature": 1,
    "truncation": "disabled", "user": "u", "background": false, "seed": 1})");
  Server server;
  (void)server.answer({{"input", "Hi"}}, reply_final);
  std::mt19937_64 random(7);
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    3.5,
                                    "",
                                    "x",
                                    "resp_key0",
                                    "user",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({1}),
                                    Json::array({{{"type", "text"}}}),
                                    {{"type", "message"}},
                                    {{"role", "user"}},
                                    {{"id", 5}},
                                    {{"id", "msg_key0_1"}},
                                    Json::array({nullptr})};
  int answered = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    Json body = good;
    for (std::uint64_t change = 0, changes = 1 + random() % 3; change < changes; ++change) {
      Json* at = &body;
      while (at->is_structured() && !at->empty() && (at == &body || random() % 4 != 0))
        at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(random() % at->size()));
      *at = values[random() % values.size()];
    }
    if (!body.is_object()) continue;
    const Keeping keeping{server.store, "ann"};
    auto job = responses_job(body, {"again", 1, "tiny"}, keeping, tests::tiny_format());
    if (!job) {
      ++refused;
      ASSERT_FALSE(job.error().message.empty()) << body;
      continue;
    }
    ++answered;
    const bool stored = body.value("store", Json()) != false;
    (void)job->answer->begin();
    ASSERT_TRUE(job->answer->end(wire::Done{})) << body;
    ASSERT_EQ(server.store->get("ann", "resp_again").ok(), stored) << body;
    if (!stored) continue;
    ASSERT_TRUE(server.store->input_items("ann", "resp_again", {})) << body;
    ASSERT_TRUE(server.store->remove("ann", "resp_again"));
  }
  EXPECT_GT(answered, 500);
  EXPECT_GT(refused, 2000);
}

TEST(OpenAiResponsesAnswerTest, a_failure_in_a_stream_is_its_last_event_and_leaves_nothing) {
  Server server;
  for (const bool in_end : {true, false}) {
    Job job = tests::must(responses_job({{"input", "Hi"}, {"stream", true}}, {"key", 1, "tiny"}, {server.store, ""}, tests::tiny_format()));
    std::string words = job.answer->begin();
    words += job.answer->push({"", 1, 0, {wire::MessageStarted{0, harmony::Role::assistant, "final", "", ""}, wire::Text{0, "hal"}}, {}});
    Error error{ErrorCode::core_lost, "The core died.", ""};
    if (in_end) {
      wire::Done done;
      done.reason = FinishReason::cancelled;
      const auto end = job.answer->end(done);
      ASSERT_FALSE(end);
      error = end.error();
    }
    words += job.answer->fail(http::reply_for(error));
    const auto events = events_in(words);
    EXPECT_EQ(tests::wrong_events(events, events.back()["response"]), "");
    EXPECT_EQ(events.back()["type"], "response.failed");
    EXPECT_EQ(events.back()["response"]["error"]["code"], "server_error");
    EXPECT_EQ(events.back()["response"]["error"]["message"], in_end ? "the request was cancelled (cancelled)" : "The core died. (core_lost)");
    EXPECT_EQ(server.store->size(), 0U);
  }
}

}  // namespace
}  // namespace althing::protocol::openai
