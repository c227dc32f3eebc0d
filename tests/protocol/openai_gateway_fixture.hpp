// A gateway between a client that is an exchange and an engine that is a script: what the tests of the gateway and of its relays share.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "protocol/openai/gateway.hpp"
#include "tests/protocol/client_server.hpp"

namespace althing::protocol::openai {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;
using tests::ScriptedServer;

class Desk : public Doorkeeper {
 public:
  bool needs_keys() const override { return keys; }
  std::variant<Caller, http::ErrorReply> admit(const http::Request& head) override {
    if (!keys || head.authorization == "Bearer right") return Caller{keys ? "acme" : "", keys ? "k" : ""};
    if (head.authorization == "Bearer other") return Caller{"acme", "o"};
    return http::ErrorReply{401, "authentication_error", "invalid_api_key", "no", "", 0};
  }
  std::optional<http::ErrorReply> charge(const Caller&) override {
    if (left-- > 0) return std::nullopt;
    return http::ErrorReply{429, "rate_limit_error", "rate_limit_exceeded", "wait", "", 7};
  }
  void used(const Caller& caller, std::uint64_t tokens) override { spent[caller.key] += tokens; }
  bool keys = false;
  int left = 1000;
  std::map<std::string, std::uint64_t> spent;
};

class Numbers : public Observer {
 public:
  void answered(std::string_view route, std::uint16_t status, std::uint64_t, bool) override {
    answers.push_back(std::string(route) + " " + std::to_string(status));
  }
  void rejected(Rejection why) override { ++rejections[std::string(name_of(why))]; }
  void refused_connection(std::string_view) override {}
  void open_requests(std::size_t count) override { open = count; }
  void first_event(double) override { ++firsts; }
  void tokens(const TokenCounts& counts) override { counted = counts; }
  std::string scrape() override { return "numbers"; }
  std::vector<std::string> answers;
  std::map<std::string, int> rejections;
  std::size_t open = 0;
  int firsts = 0;
  TokenCounts counted;
};

class OpenaiGateway : public testing::Test {
 protected:
  OpenaiGateway() {
    ClientOptions options = tests::options_for(server_.endpoint());
    options.ping_interval_max = 20ms;  // each test waits for one
    const auto tokenizer = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    GatewayOptions how{*harmony::Format::of(*tokenizer), true};
    how.aside = [this](auto heavy, auto then) { aside_.emplace_back(std::move(heavy), std::move(then)); };
    gateway_ = std::make_unique<Gateway>(std::move(how), *Client::open(options), desk_, numbers_);
  }
  // The engine's next message of this kind, with everything before it answered.
  template <class Message>
  std::optional<Message> hear() {
    for (const auto deadline = tests::Clock::now() + tests::patience; tests::Clock::now() < deadline;) {
      gateway_->pump();
      const auto heard = server_.hear(1ms);
      if (!heard) continue;
      from_ = heard->from;
      if (std::holds_alternative<wire::Hello>(heard->message)) server_.say(from_, server_.welcome());
      if (const auto* ping = std::get_if<wire::Ping>(&heard->message)) server_.say(from_, wire::Pong{ping->nonce, "one", state_});
      if (const auto* message = std::get_if<Message>(&heard->message)) return *message;
    }
    ADD_FAILURE() << "the engine did not hear what it waited for";
    return std::nullopt;
  }
  void connect() {
    hear<wire::Hello>();
    hear<wire::Ping>();
    pump_until([&] { return gateway_->state() == "ready"; });
  }
  void pump_until(const auto& condition) {
    for (const auto deadline = tests::Clock::now() + tests::patience; !condition() && tests::Clock::now() < deadline;) gateway_->pump();
    EXPECT_TRUE(condition());
  }
  void say(const wire::ServerMessage& message) { server_.say(from_, message); }

  static http::Request request(const std::string& method, const std::string& path, const std::string& body = "") {
    http::Request r;
    r.method = method;
    r.path = path;
    r.host = "127.0.0.1:80";
    r.id = "q";
    r.content_type = "application/json";
    r.body = body;
    return r;
  }
  // What the HTTP server does with a request; the exchange is left to the test.
  std::shared_ptr<http::Exchange> ask(const http::Request& r) {
    auto exchange = std::make_shared<http::Exchange>(r, true, true);
    if (const auto refused = gateway_->refuse(r))
      exchange->respond(*refused);
    else
      gateway_->handle(exchange);
    return exchange;
  }
  static Json body_of(http::Exchange& exchange) {
    const std::string bytes = exchange.take();
    return Json::parse(bytes.substr(bytes.find("\r\n\r\n") + 4), nullptr, false);
  }

  ScriptedServer server_{"one"};
  Desk desk_;
  Numbers numbers_;
  std::unique_ptr<Gateway> gateway_;
  std::vector<std::pair<std::function<void()>, std::function<void()>>> aside_;  // what the gateway wants done elsewhere
  std::string from_, state_ = "ready";
  const std::string hello_ = R"({"messages": [{"role": "user", "content": "hi"}]})";
  const std::string stream_ = R"({"messages": [{"role": "user", "content": "hi"}], "stream": true})";
};

inline wire::Delta text_delta(const std::string& id, std::uint64_t sequence, const std::string& text) {
  std::vector<wire::DeltaEvent> events;
  if (sequence == 1) events.emplace_back(wire::MessageStarted{0, harmony::Role::assistant, "final", "", ""});
  events.emplace_back(wire::Text{0, text});
  return {id, sequence, 0, std::move(events), {1, 2}};
}

}  // namespace althing::protocol::openai
