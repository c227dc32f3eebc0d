// The OpenAI-compatible gateway: an HTTP handler that is a client of the engine like any other. It finds a request's route, asks who is calling, and
// answers from what it knows itself or through a relay. One thread: that of the HTTP server which it is given to.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "protocol/chat/chat_format.hpp"
#include "protocol/client/client.hpp"
#include "protocol/http/server.hpp"
#include "protocol/openai/front_desk.hpp"
#include "protocol/openai/relay.hpp"
#include "protocol/openai/response_store.hpp"

namespace althing::protocol::openai {

struct Route;
struct Draft;

struct GatewayOptions {
  chat::ChatFormat format;                       // of the engine's model
  bool show_metrics = false;                     // at /metrics
  StoreLimits responses{};                       // of what is kept for the Responses API
  std::chrono::milliseconds keep_alive{15'000};  // a stream that says nothing for so long says that it lives; 0: none does
  // Calls the first where it may take long, then the second on the gateway's thread; nothing: both at once.
  std::function<void(std::function<void()>, std::function<void()>)> aside{};
};

class Gateway : public http::Handler {
 public:
  // REQUIRES: doorkeeper and observer outlive the gateway.
  Gateway(GatewayOptions options, Client client, Doorkeeper& doorkeeper, Observer& observer);

  std::optional<http::Response> refuse(const http::Request& head) override;
  void handle(std::shared_ptr<http::Exchange> exchange) override;
  void answered(const http::Exchange& exchange) override;
  void refused_connection(std::string_view why) override;

  // Takes what the engine has sent, and does what is due. To be called when one of the client's descriptors is readable, and some times a second.
  void pump();
  // Streams that have said nothing for too long say that they live. To be called some times in the time that options name.
  void keep_alive(std::chrono::steady_clock::time_point now);
  std::array<int, 2> descriptors() const { return client_.descriptors(); }
  // From now on nothing new is begun; what is open goes on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Ends what is open; its clients hear why.
  void end_open(const Error& why);
  std::size_t open_requests() const { return open_; }
  // draining; starting or unreachable, as far as the engine has not answered; else the engine's own word, of which "ready" is one.
  std::string state() const;
  // What answered() and metrics may name.
  static std::vector<std::string_view> route_names();

 private:
  http::Response own(const Route& route, const http::Request& request);
  http::Response ready() const;
  http::Response models(const http::Request& request) const;
  http::Response responses(const Route& route, const http::Request& request);
  void aside(const http::Exchange& exchange, std::function<void()> heavy, std::function<void()> then) const;
  void tokens(const Route& route, const std::shared_ptr<http::Exchange>& exchange);
  void generate(const Route& route, const std::shared_ptr<http::Exchange>& exchange);
  void begin(Draft& draft, const std::shared_ptr<http::Exchange>& exchange);
  http::Response reject(Rejection why, const http::ErrorReply& error) const;
  std::string next_key();

  GatewayOptions options_;
  Client client_;
  std::shared_ptr<ResponseStore> store_;
  Doorkeeper& doorkeeper_;
  Observer& observer_;
  RelayHost host_;
  std::int64_t began_;  // Unix time, seconds
  std::random_device random_;
  std::uint32_t keys_made_ = 0;
  std::vector<std::weak_ptr<Relay>> relays_;
  std::size_t open_ = 0;
  bool draining_ = false;
};

}  // namespace althing::protocol::openai
