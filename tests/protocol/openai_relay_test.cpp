// One generating request between its client and the engine: how much the engine may send before the client has taken it, what a client that rests or
// goes means, and several prompts that are one answer.
#include "protocol/openai/relay.hpp"

#include <gtest/gtest.h>

#include "tests/protocol/openai_gateway_fixture.hpp"

namespace althing::protocol::openai {
namespace {

class OpenaiRelay : public OpenaiGateway {};

TEST_F(OpenaiRelay, a_stream_gets_credit_only_as_its_client_takes_what_there_is) {
  connect();
  const auto exchange = ask(request("POST", "/v1/chat/completions", stream_));
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  EXPECT_EQ(submit->credit, Relay::credit);
  const std::string id = submit->request_id;
  say(wire::Accepted{id, 5, 1});
  for (std::uint32_t i = 1; i <= Relay::credit; ++i) say(text_delta(id, i, "w" + std::to_string(i)));
  pump_until([&] { return exchange->has_output() && numbers_.firsts == 1; });
  // Nothing has left: whatever the engine hears now, it is no credit.
  for (int i = 0; i < 20; ++i) {
    gateway_->pump();
    const auto heard = server_.hear(1ms);
    EXPECT_FALSE(heard && std::holds_alternative<wire::Grant>(heard->message));
  }
  std::string bytes = exchange->take();
  EXPECT_NE(bytes.find("text/event-stream"), std::string::npos);
  EXPECT_NE(bytes.find("w16"), std::string::npos);
  exchange->drained();
  const auto grant = hear<wire::Grant>();
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->credit, Relay::credit);
  say(wire::Done{id, 17, FinishReason::stop, {5, 32, 0}, {}, false, {}, 3});
  pump_until([&] { return exchange->finished(); });
  bytes = exchange->take();
  EXPECT_NE(bytes.find("data: [DONE]"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("0\r\n\r\n"));
  EXPECT_EQ(numbers_.counted.reasoning, 3U);
  EXPECT_EQ(numbers_.open, 0U);
}

TEST_F(OpenaiRelay, a_whole_answer_never_waits_for_its_client) {
  connect();
  const auto exchange = ask(request("POST", "/v1/chat/completions", hello_));
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  say(wire::Accepted{submit->request_id, 5, 1});
  // Credit comes back by halves.
  for (std::uint32_t i = 1; i <= Relay::credit / 2; ++i) say(text_delta(submit->request_id, i, i == 1 ? "yes" : "."));
  const auto grant = hear<wire::Grant>();
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->credit, Relay::credit / 2);
  EXPECT_FALSE(exchange->started());
  say(wire::Done{submit->request_id, Relay::credit / 2 + 1, FinishReason::stop, {5, 2, 0}, {}});
  pump_until([&] { return exchange->finished(); });
  EXPECT_EQ(body_of(*exchange)["choices"][0]["message"]["content"], "yes.......");
}

TEST_F(OpenaiRelay, a_client_that_goes_cancels_its_request_and_pays_for_what_it_got) {
  desk_.keys = true;
  connect();
  http::Request r = request("POST", "/v1/chat/completions", stream_);
  r.authorization = "Bearer right";
  const auto exchange = ask(r);
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  say(wire::Accepted{submit->request_id, 5, 1});
  say(text_delta(submit->request_id, 1, "w"));
  pump_until([&] { return numbers_.firsts == 1; });
  exchange->lost();
  const auto cancel = hear<wire::Cancel>();
  ASSERT_TRUE(cancel);
  EXPECT_EQ(cancel->request_id, submit->request_id);
  EXPECT_EQ(numbers_.open, 0U);
  EXPECT_EQ(desk_.spent["k"], 7U) << "the prompt and two tokens";
  // The engine's last word finds nobody, and does no harm.
  say(wire::ErrorReply{submit->request_id, 2, {ErrorCode::cancelled, "cancelled by the client", ""}});
  hear<wire::Ping>();
}

TEST_F(OpenaiRelay, a_stream_that_rests_says_that_it_lives) {
  connect();
  const auto exchange = ask(request("POST", "/v1/chat/completions", stream_));
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  const std::string comment = ": keep-alive\n\n";
  const auto now = tests::Clock::now();
  gateway_->keep_alive(now + 60s);
  EXPECT_FALSE(exchange->has_output()) << "nobody knows yet which status the answer has";
  say(wire::Accepted{submit->request_id, 5, 1});
  pump_until([&] { return exchange->started(); });
  gateway_->keep_alive(now + 60s);
  EXPECT_EQ(exchange->take().find(comment), std::string::npos) << "a client that does not read needs no more to read";
  gateway_->keep_alive(tests::Clock::now() + 14s);
  EXPECT_FALSE(exchange->has_output());
  gateway_->keep_alive(now + 60s);
  EXPECT_NE(exchange->take().find(comment), std::string::npos);
  gateway_->keep_alive(now + 74s);
  EXPECT_FALSE(exchange->has_output());
  gateway_->keep_alive(now + 75s);
  EXPECT_NE(exchange->take().find(comment), std::string::npos);
  say(text_delta(submit->request_id, 1, "w"));
  say(wire::Done{submit->request_id, 2, FinishReason::stop, {5, 2, 0}, {}});
  pump_until([&] { return exchange->finished(); });
  exchange->take();
  gateway_->keep_alive(now + 200s);
  EXPECT_FALSE(exchange->has_output());
  // An answer in one piece has no place for it.
  const auto whole = ask(request("POST", "/v1/chat/completions", hello_));
  const auto second = hear<wire::Submit>();
  ASSERT_TRUE(second);
  say(wire::Accepted{second->request_id, 5, 1});
  for (std::uint32_t i = 1; i <= Relay::credit / 2; ++i) say(text_delta(second->request_id, i, "w"));
  hear<wire::Grant>();
  gateway_->keep_alive(now + 300s);
  EXPECT_FALSE(whole->has_output());
}

TEST_F(OpenaiRelay, a_gateway_that_ends_tells_those_who_wait_and_the_engine) {
  connect();
  const auto stream = ask(request("POST", "/v1/chat/completions", stream_));
  const auto first = hear<wire::Submit>();
  const auto whole = ask(request("POST", "/v1/chat/completions", hello_));
  const auto second = hear<wire::Submit>();
  ASSERT_TRUE(first && second);
  say(wire::Accepted{first->request_id, 5, 1});
  pump_until([&] { return stream->started(); });
  gateway_->end_open(Error{ErrorCode::draining, "it ended", ""});
  EXPECT_EQ(gateway_->open_requests(), 0u);
  EXPECT_NE(stream->take().find("it ended"), std::string::npos);
  EXPECT_TRUE(whole->finished());
  EXPECT_EQ(whole->status(), 503);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(hear<wire::Cancel>());
}

// What a stream's bytes say in each choice.
std::map<int, std::string> texts_of(const std::string& bytes) {
  std::map<int, std::string> texts;
  for (std::size_t at = bytes.find("data: {"); at != std::string::npos; at = bytes.find("data: {", at + 1)) {
    const Json event = Json::parse(bytes.substr(at + 6, bytes.find("\n\n", at) - at - 6));
    for (const Json& choice : event["choices"]) texts[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  return texts;
}

TEST_F(OpenaiRelay, several_prompts_are_one_answer_in_their_order) {
  connect();
  for (const bool stream : {false, true}) {
    const Json body = {{"prompt", {"one", "two"}}, {"n", 2}, {"stream", stream}, {"stream_options", {{"include_usage", true}}}, {"max_tokens", 4}};
    const auto exchange = ask(request("POST", "/v1/completions", body.dump()));
    const auto first = hear<wire::Submit>(), second = hear<wire::Submit>();
    ASSERT_TRUE(first && second);
    EXPECT_NE(first->prompt_tokens, second->prompt_tokens);
    EXPECT_EQ(first->credit, Relay::credit);
    EXPECT_EQ(second->credit, Relay::credit);
    const auto tokenizer = *Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    const auto delta = [&](const wire::Submit& of, std::uint64_t sequence, std::uint32_t choice, const std::string& text) {
      return wire::Delta{of.request_id, sequence, choice, {}, tokenizer->encode(text)};
    };
    // The second is ahead of the first, which is accepted late.
    say(wire::Accepted{second->request_id, 5, 1});
    say(delta(*second, 1, 1, "d"));
    hear<wire::Ping>();
    EXPECT_FALSE(exchange->started());
    say(wire::Accepted{first->request_id, 3, 1});
    say(delta(*second, 2, 0, "c"));
    say(delta(*first, 1, 0, "a"));
    say(delta(*first, 2, 1, "b"));
    const auto ends = [](FinishReason reason) { return std::vector<wire::ChoiceEnd>(2, {reason, 1, 0, std::nullopt}); };
    say(wire::Done{second->request_id, 3, FinishReason::length, {5, 2, 0}, ends(FinishReason::length)});
    hear<wire::Ping>();
    EXPECT_FALSE(exchange->finished());
    say(wire::Done{first->request_id, 3, FinishReason::stop, {3, 2, 0}, ends(FinishReason::stop)});
    pump_until([&] { return exchange->finished(); });
    EXPECT_EQ(numbers_.counted.prompt, 8U);
    EXPECT_EQ(numbers_.counted.completion, 4U);
    EXPECT_EQ(numbers_.open, 0U);
    if (stream) {
      const std::string bytes = exchange->take();
      EXPECT_EQ(texts_of(bytes), (std::map<int, std::string>{{0, "a"}, {1, "b"}, {2, "c"}, {3, "d"}}));
      EXPECT_NE(bytes.find(R"("usage":{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12)"), std::string::npos) << bytes;
      continue;
    }
    const Json answer = body_of(*exchange);
    std::string all;
    for (const Json& choice : answer["choices"])
      all += std::to_string(choice["index"].get<int>()) + choice["text"].get<std::string>() + choice["finish_reason"].get<std::string>() + " ";
    EXPECT_EQ(all, "0astop 1bstop 2clength 3dlength ");
    EXPECT_EQ(answer["usage"]["total_tokens"], 12);
  }
}

TEST_F(OpenaiRelay, when_one_of_several_prompts_fails_all_do) {
  connect();
  const auto exchange = ask(request("POST", "/v1/completions", R"({"prompt": ["one", "two", "three"], "stream": true})"));
  const auto first = hear<wire::Submit>(), second = hear<wire::Submit>(), third = hear<wire::Submit>();
  ASSERT_TRUE(first && second && third);
  say(wire::Accepted{first->request_id, 3, 1});
  say(wire::Done{first->request_id, 1, FinishReason::stop, {3, 1, 0}, {}});
  say(wire::ErrorReply{second->request_id, 1, {ErrorCode::too_large, "the prompt has 9000 tokens", "prompt"}});
  // Of the others, the one that has not ended is cancelled; the answer can still be a status, since nothing was told.
  const auto cancel = hear<wire::Cancel>();
  ASSERT_TRUE(cancel);
  EXPECT_EQ(cancel->request_id, third->request_id);
  EXPECT_EQ(exchange->status(), 400);
  EXPECT_EQ(numbers_.open, 0U);
  say(wire::Accepted{third->request_id, 3, 1});
  say(wire::ErrorReply{third->request_id, 1, {ErrorCode::cancelled, "cancelled by the client", ""}});
  hear<wire::Ping>();
  // A client that goes leaves nothing running either.
  const auto gone = ask(request("POST", "/v1/completions", R"({"prompt": ["one", "two"]})"));
  ASSERT_TRUE(hear<wire::Submit>() && hear<wire::Submit>());
  gone->lost();
  EXPECT_TRUE(hear<wire::Cancel>() && hear<wire::Cancel>());
}

}  // namespace
}  // namespace althing::protocol::openai
