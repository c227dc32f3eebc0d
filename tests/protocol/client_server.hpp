// A server that does what a test tells it to: a ROUTER in the test's own thread, driven by hand, so that every order of events can be made.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "protocol/client/client.hpp"

namespace althing::tests {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds patience{10'000};  // deadlines of the tests; nothing waits that long unless something is broken

struct Heard {
  std::string from;  // the connection's routing id
  protocol::wire::Encoding encoding{};
  protocol::wire::ClientMessage message;
};

class ScriptedServer {
 public:
  explicit ScriptedServer(std::string instance, const std::string& endpoint = "tcp://127.0.0.1:*") : instance_(std::move(instance)) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::router_mandatory, 1);
    bind(endpoint);
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
  }
  const std::string& endpoint() const { return endpoint_; }

  std::optional<Heard> hear(std::chrono::milliseconds wait) {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq::poll(&item, 1, wait) == 0) return std::nullopt;
    std::vector<std::string> parts;
    bool more = true;
    while (more) {
      zmq::message_t part;
      if (!socket_.recv(part)) return std::nullopt;
      more = part.more();
      parts.push_back(part.to_string());
    }
    EXPECT_EQ(parts.size(), 3U);
    const auto encoding = protocol::wire::encoding_of(parts.at(1));
    EXPECT_TRUE(encoding.ok());
    auto message = protocol::wire::decode_client(parts.at(2), *encoding, Limits{});
    EXPECT_TRUE(message.ok()) << (message.ok() ? "" : message.error().message);
    if (!message) return std::nullopt;
    return Heard{parts[0], *encoding, std::move(*message)};
  }

  void say(const std::string& to, const protocol::wire::ServerMessage& message, protocol::wire::Encoding encoding = protocol::wire::Encoding::capnp) {
    say_raw(to, {protocol::wire::header_of(encoding), protocol::wire::encode(message, encoding)});
  }
  void say_raw(const std::string& to, const std::vector<std::string>& parts) {
    socket_.send(zmq::buffer(to), parts.empty() ? zmq::send_flags::none : zmq::send_flags::sndmore);
    for (std::size_t i = 0; i < parts.size(); ++i)
      socket_.send(zmq::buffer(parts[i]), i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  protocol::wire::Welcome welcome() const { return {1, instance_, "tiny", 2048, 1 << 20, 15'000}; }
  protocol::wire::Pong pong(std::uint64_t nonce) const { return {nonce, instance_, "ready"}; }

 private:
  // A port that another server has just left may need a moment.
  void bind(const std::string& endpoint) {
    for (const auto deadline = Clock::now() + patience;;) {
      try {
        return socket_.bind(endpoint);
      } catch (const zmq::error_t& failure) {
        if (failure.num() != EADDRINUSE || Clock::now() > deadline) throw;
      }
    }
  }

  zmq::context_t context_{1};
  zmq::socket_t socket_{context_, zmq::socket_type::router};
  std::string instance_, endpoint_;
};

inline protocol::ClientOptions options_for(const std::string& endpoint) {
  protocol::ClientOptions options;
  options.endpoint = endpoint;
  options.timeout = patience;
  return options;
}

// Connects while the server answers Hello.
inline protocol::Client connected(ScriptedServer& server, const protocol::ClientOptions& options) {
  auto client = std::async(std::launch::async, [&] { return protocol::Client::connect(options); });
  const auto hello = server.hear(patience);
  EXPECT_TRUE(hello && std::holds_alternative<protocol::wire::Hello>(hello->message));
  server.say(hello->from, server.welcome(), hello->encoding);
  auto result = client.get();
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(*result);
}

// Polls the client until the server hears a message of this kind; pings in between are answered, other messages are passed over.
template <class Message>
std::optional<std::pair<std::string, Message>> expect(ScriptedServer& server, protocol::Client& client) {
  for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
    client.poll(std::chrono::milliseconds(1));
    const auto heard = server.hear(std::chrono::milliseconds(1));
    if (!heard) continue;
    if (const auto* message = std::get_if<Message>(&heard->message)) return std::pair(heard->from, *message);
    if (const auto* ping = std::get_if<protocol::wire::Ping>(&heard->message)) server.say(heard->from, server.pong(ping->nonce), heard->encoding);
  }
  ADD_FAILURE() << "the server did not hear what it waited for";
  return std::nullopt;
}

// What a stream's handler heard, as words.
struct Story {
  std::vector<std::string> words;
  std::optional<Error> error;

  protocol::StreamHandler handler() {
    return [this](const protocol::StreamEvent& event) {
      if (std::holds_alternative<protocol::wire::Accepted>(event)) words.emplace_back("accepted");
      if (std::holds_alternative<protocol::wire::Done>(event)) words.emplace_back("done");
      if (const auto* delta = std::get_if<protocol::wire::Delta>(&event))
        for (const auto& part : delta->events)
          if (const auto* text = std::get_if<protocol::wire::Text>(&part)) words.push_back(text->text);
      if (const auto* failure = std::get_if<Error>(&event)) {
        error = *failure;
        words.push_back("error " + std::string(name_of(failure->code)));
      }
    };
  }
};

template <class Condition>
bool poll_until(protocol::Client& client, Condition condition) {
  for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
    if (condition()) return true;
    client.poll(std::chrono::milliseconds(5));
  }
  return condition();
}

inline protocol::wire::Submit request(std::string id, std::uint32_t credit = 0) {
  protocol::wire::Submit submit;
  submit.request_id = std::move(id);
  submit.prompt_tokens = {1, 2, 3};
  submit.credit = credit;
  return submit;
}

inline protocol::wire::Delta text_delta(const std::string& id, std::uint64_t sequence, const std::string& text) {
  return {id, sequence, 0, {protocol::wire::Text{0, text}}, {}};
}

}  // namespace althing::tests
