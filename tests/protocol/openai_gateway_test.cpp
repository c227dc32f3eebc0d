// The gateway between a client that is an exchange and an engine that is a script: who is refused with what, and what becomes of a request whose
// engine fails, or whose server drains.
#include "protocol/openai/gateway.hpp"

#include <gtest/gtest.h>

#include "tests/protocol/openai_gateway_fixture.hpp"

namespace althing::protocol::openai {
namespace {

TEST_F(OpenaiGateway, long_bodies_are_read_aside) {
  connect();
  const std::string words(20'000, 'a');
  const auto tokens = ask(request("POST", "/tokenize", R"({"prompt": ")" + words + "\"}"));
  const auto begun = ask(request("POST", "/v1/completions", R"({"prompt": "a")" + std::string(20'000, ' ') + "}"));
  const auto wrong = ask(request("POST", "/v1/chat/completions", R"({"messages": ")" + words + "\"}"));
  const auto foreign = ask(request("POST", "/v1/responses", R"({"model": "other", "input": ")" + words + "\"}"));
  const auto left = ask(request("POST", "/v1/responses", R"({"input": ")" + words + "\"}"));
  ASSERT_EQ(aside_.size(), 5u);
  const auto whole = ask(request("POST", "/tokenize", R"({"prompt": "a"})"));
  EXPECT_TRUE(whole->finished());
  for (const auto& [heavy, then] : aside_) heavy();
  left->lost();
  EXPECT_FALSE(tokens->finished() || wrong->finished());
  for (const auto& [heavy, then] : aside_) then();
  EXPECT_GT(body_of(*tokens)["count"], 1000);
  EXPECT_EQ(wrong->status(), 400);
  EXPECT_EQ(foreign->status(), 404);
  EXPECT_FALSE(left->finished());
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  EXPECT_EQ(gateway_->open_requests(), 1u);
  EXPECT_FALSE(begun->finished());
}

TEST_F(OpenaiGateway, refusals_have_the_status_that_fits) {
  const auto status = [&](const http::Request& r) { return ask(r)->status(); };
  EXPECT_EQ(status(request("GET", "/nothing")), 404);
  EXPECT_EQ(status(request("GET", "/v1/modelsx")), 404);
  const auto wrong = ask(request("GET", "/v1/chat/completions"));
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_NE(wrong->take().find("Allow: POST\r\n"), std::string::npos);
  EXPECT_NE(ask(request("POST", "/live"))->take().find("Allow: GET, HEAD\r\n"), std::string::npos);
  EXPECT_EQ(status(request("HEAD", "/live")), 200);
  http::Request text = request("POST", "/v1/chat/completions", hello_);
  text.content_type = "text/plain";
  EXPECT_EQ(status(text), 415);
  for (const char* host : {"evil.example", "", "127.0.0.1.evil.example", "192.168.0.1:80"}) {
    http::Request foreign = request("GET", "/ready");
    foreign.host = host;
    EXPECT_EQ(status(foreign), 403) << host;
  }
  for (const char* host : {"localhost", "localhost:8080", "127.0.0.1", "127.1.2.3:1", "[::1]:80"}) {
    http::Request local = request("GET", "/live");
    local.host = host;
    EXPECT_EQ(status(local), 200) << host;
  }
  EXPECT_EQ(numbers_.rejections, (std::map<std::string, int>{{"no_route", 4}, {"content_type", 1}, {"host", 4}}));
}

TEST_F(OpenaiGateway, with_keys_a_right_one_is_needed_but_for_probes) {
  desk_.keys = true;
  connect();
  http::Request models = request("GET", "/v1/models");
  models.host = "any.example";
  const auto refused = ask(models);
  EXPECT_EQ(refused->status(), 401);
  EXPECT_NE(refused->take().find("WWW-Authenticate: Bearer\r\n"), std::string::npos);
  models.authorization = "Bearer right";
  EXPECT_EQ(ask(models)->status(), 200);
  EXPECT_EQ(ask(request("GET", "/live"))->status(), 200);
  http::Request chat = request("POST", "/v1/chat/completions", hello_);
  EXPECT_EQ(ask(chat)->status(), 401);
  chat.authorization = "Bearer right";
  const auto exchange = ask(chat);
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  EXPECT_EQ(submit->tenant, "acme");
  say(wire::Accepted{submit->request_id, 5, 1});
  say(wire::Done{submit->request_id, 1, FinishReason::stop, {5, 7, 0}, {}});
  pump_until([&] { return exchange->finished(); });
  EXPECT_EQ(desk_.spent["k"], 12U);
  desk_.left = 0;
  const auto limited = ask(chat);
  EXPECT_EQ(limited->status(), 429);
  EXPECT_NE(limited->take().find("Retry-After: 7\r\n"), std::string::npos);
}

TEST_F(OpenaiGateway, ready_is_what_the_engine_says_of_itself) {
  const auto state = [&] {
    const auto exchange = ask(request("GET", "/ready"));
    const int status = exchange->status();
    return std::to_string(status) + " " + body_of(*exchange).value("state", "");
  };
  EXPECT_EQ(state(), "503 starting");
  EXPECT_EQ(ask(request("POST", "/v1/chat/completions", hello_))->status(), 503);
  EXPECT_EQ(ask(request("GET", "/v1/models"))->status(), 503);
  connect();
  EXPECT_EQ(state(), "200 ready");
  state_ = "recovering";
  hear<wire::Ping>();
  pump_until([&] { return gateway_->state() == "recovering"; });
  EXPECT_EQ(state(), "503 recovering");
  gateway_->drain();
  EXPECT_EQ(state(), "503 draining");
  const auto late = ask(request("POST", "/v1/chat/completions", hello_));
  EXPECT_EQ(late->status(), 503);
  EXPECT_NE(late->take().find("Retry-After: 1\r\n"), std::string::npos);
  EXPECT_EQ(ask(request("GET", "/v1/models"))->status(), 200);
}

TEST_F(OpenaiGateway, models_are_listed_and_found_by_name) {
  connect();
  EXPECT_EQ(body_of(*ask(request("GET", "/v1/models")))["data"][0]["id"], "tiny");
  EXPECT_EQ(body_of(*ask(request("GET", "/v1/models/tiny")))["id"], "tiny");
  EXPECT_EQ(body_of(*ask(request("GET", "/v1/models/%74iny")))["id"], "tiny");
  EXPECT_EQ(ask(request("GET", "/v1/models/other"))->status(), 404);
  const auto other = ask(request("POST", "/v1/chat/completions", R"({"model": "other", "messages": [{"role": "user", "content": "hi"}]})"));
  EXPECT_EQ(other->status(), 404);
  EXPECT_EQ(body_of(*other)["error"]["code"], "model_not_found");
}

TEST_F(OpenaiGateway, bad_bodies_are_refused_before_the_engine_hears_of_them) {
  connect();
  for (const char* body :
       {"", "{", "[]", "5", "{\"messages\": [], \"messages\": []}", "{\"messages\": [{\"role\": \"nobody\"}]}", "{\"messages\": \"\xff\"}"})
    EXPECT_EQ(ask(request("POST", "/v1/chat/completions", body))->status(), 400) << body;
  EXPECT_EQ(ask(request("POST", "/tokenize", "{"))->status(), 400);
  EXPECT_EQ(ask(request("POST", "/detokenize", "{}"))->status(), 400);
  EXPECT_EQ(numbers_.rejections, (std::map<std::string, int>{{"invalid", 9}}));
  EXPECT_EQ(numbers_.open, 0U);
}

TEST_F(OpenaiGateway, failures_are_a_status_before_the_stream_and_an_event_in_it) {
  connect();
  auto exchange = ask(request("POST", "/v1/chat/completions", stream_));
  auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  say(wire::ErrorReply{submit->request_id, 1, {ErrorCode::too_large, "the prompt has 9000 tokens", "prompt"}});
  pump_until([&] { return exchange->finished(); });
  EXPECT_EQ(exchange->status(), 400);
  EXPECT_EQ(body_of(*exchange)["error"]["code"], "context_length_exceeded");

  exchange = ask(request("POST", "/v1/chat/completions", stream_));
  submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  say(wire::Accepted{submit->request_id, 5, 1});
  say(wire::ErrorReply{submit->request_id, 1, {ErrorCode::nonfinite, "the model computed NaN", ""}});
  pump_until([&] { return exchange->finished(); });
  EXPECT_EQ(exchange->status(), 200);
  const std::string bytes = exchange->take();
  EXPECT_NE(bytes.find("data: {\"error\":{\"message\":\"the model computed NaN\""), std::string::npos);
  EXPECT_EQ(bytes.find("[DONE]"), std::string::npos);
  EXPECT_EQ(numbers_.rejections, (std::map<std::string, int>{{"invalid", 1}, {"engine", 1}}));
}

TEST_F(OpenaiGateway, responses_are_made_got_listed_and_deleted_by_the_key_that_made_them_only) {
  desk_.keys = true;
  connect();
  const auto as = [&](const std::string& key, const std::string& method, const std::string& path, const std::string& body = "",
                      const std::string& query = "") {
    http::Request r = request(method, path, body);
    r.authorization = "Bearer " + key;
    r.query = query;
    return ask(r);
  };
  const auto made = as("right", "POST", "/v1/responses", R"({"input": "hi"})");
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  say(wire::Accepted{submit->request_id, 5, 1});
  say(text_delta(submit->request_id, 1, "yes"));
  say(wire::Done{submit->request_id, 2, FinishReason::stop, {5, 2, 0}, {}});
  pump_until([&] { return made->finished(); });
  const Json response = body_of(*made);
  const std::string path = "/v1/responses/" + response["id"].get<std::string>();
  EXPECT_EQ(body_of(*as("right", "GET", path)), response);
  const Json items = body_of(*as("right", "GET", path + "/input_items", "", "order=asc&limit=5"));
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "hi");
  EXPECT_EQ(as("right", "GET", path + "/input_items", "", "limit=0")->status(), 400);
  for (const auto* method : {"GET", "DELETE"}) EXPECT_EQ(as("other", method, path)->status(), 404) << method;
  EXPECT_EQ(as("other", "GET", path + "/input_items")->status(), 404);
  EXPECT_EQ(as("wrong", "GET", path)->status(), 401);
  const auto other = as("other", "POST", "/v1/responses", Json({{"input", "hi"}, {"previous_response_id", response["id"]}}).dump());
  EXPECT_EQ(other->status(), 404);
  EXPECT_EQ(body_of(*other)["error"]["param"], "previous_response_id");
  EXPECT_EQ(body_of(*as("right", "DELETE", path)), Json({{"id", response["id"]}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(as("right", "GET", path)->status(), 404);
  const auto wrong = as("right", "POST", path, "{}");
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_NE(wrong->take().find("Allow: GET, HEAD, DELETE\r\n"), std::string::npos);
  for (const auto* nothing : {"/v1/responses/", "/v1/responses//input_items", "/v1/responses/a/b", "/v1/responses/a/input_items/"})
    EXPECT_EQ(as("right", "GET", nothing)->status(), 404) << nothing;
}

TEST_F(OpenaiGateway, a_response_whose_client_goes_is_cancelled_and_not_kept) {
  connect();
  const auto exchange = ask(request("POST", "/v1/responses", R"({"input": "hi", "stream": true})"));
  const auto submit = hear<wire::Submit>();
  ASSERT_TRUE(submit);
  EXPECT_EQ(submit->credit, Relay::credit);
  say(wire::Accepted{submit->request_id, 5, 1});
  say(text_delta(submit->request_id, 1, "w"));
  pump_until([&] { return numbers_.firsts == 1; });
  const std::string bytes = exchange->take();
  EXPECT_NE(bytes.find("event: response.created\n"), std::string::npos);
  const std::string id = bytes.substr(bytes.find("resp_"), 29);
  exchange->lost();
  ASSERT_TRUE(hear<wire::Cancel>());
  say(wire::Done{submit->request_id, 2, FinishReason::stop, {5, 2, 0}, {}});
  hear<wire::Ping>();
  EXPECT_EQ(ask(request("GET", "/v1/responses/" + id))->status(), 404);
}

TEST_F(OpenaiGateway, the_engines_errors_are_in_the_words_of_the_route) {
  connect();
  for (const auto& [path, body, param] : {std::tuple{"/v1/responses", R"({"input": "hi"})", "max_output_tokens"},
                                          std::tuple{"/v1/chat/completions", hello_.c_str(), "max_completion_tokens"}}) {
    const auto exchange = ask(request("POST", path, body));
    const auto submit = hear<wire::Submit>();
    ASSERT_TRUE(submit);
    say(wire::ErrorReply{submit->request_id, 1, {ErrorCode::too_large, "too many", "sampling.completion_tokens_max"}});
    pump_until([&] { return exchange->finished(); });
    EXPECT_EQ(body_of(*exchange)["error"]["param"], param);
  }
}

TEST_F(OpenaiGateway, routes_are_counted_by_name) {
  const auto count = [&](const std::string& path) {
    const auto exchange = ask(request("GET", path));
    gateway_->answered(*exchange);
  };
  count("/live");
  count("/v1/models/x");
  count("/x");
  EXPECT_EQ(numbers_.answers, (std::vector<std::string>{"live 200", "models 503", "other 404"}));
  EXPECT_EQ(Gateway::route_names().size(), 11U);
  EXPECT_NE(ask(request("GET", "/metrics"))->take().find("numbers"), std::string::npos);
}

}  // namespace
}  // namespace althing::protocol::openai
