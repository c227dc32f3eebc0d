// An HTTP/1.1 server on one thread: one loop, one coroutine a connection, any number of other descriptors and timers beside them. Connections are
// kept alive and may pipeline; their answers leave in the order of the requests. Whoever sends slowly, too much, or nothing is answered (408, 413,
// 431) and cut off in bounded time; whoever comes above the bound of connections is told so (503). Every answer carries x-request-id; every refusal
// is JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/http/exchange.hpp"
#include "protocol/http/message.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, no name
  std::uint16_t port = 0;          // 0: a free one
  std::size_t connections_max = 1024;
  std::uint32_t header_bytes_max = 16u << 10;
  std::uint32_t body_bytes_max = 4u << 20;
  std::chrono::milliseconds header_time{10'000};  // from a request's first byte to the end of its header; for the first one from the connection on
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{75'000};   // between two requests of a connection
  std::chrono::milliseconds write_time{30'000};  // a client that takes nothing for so long is gone
};

// What the server asks and tells; called from its loop.
class Handler {
 public:
  virtual ~Handler() = default;
  // After a request's header and before its body: an answer that needs no body (the connection ends with it if there is one), or nothing.
  virtual std::optional<Response> refuse(const Request& head) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // An answer has ended, also one of the server itself; `exchange` says how.
  virtual void answered(const Exchange& exchange) = 0;
  // A connection was not served: "connections" (above the bound), "descriptors" (the process has none left).
  virtual void refused_connection(std::string_view why) = 0;
};

class Server {
 public:
  // REQUIRES: the handler outlives the server. Errors: invalid_argument (no address), io (says who or what is in the way).
  static Result<std::unique_ptr<Server>> listen(const ServerOptions& options, Handler& handler);
  ~Server();

  std::string address() const;  // HOST:PORT, brackets around IPv6
  // Any thread.
  std::size_t connections() const;
  std::size_t answering() const;  // of them, those whose answer is being made or has not left yet

  // Calls back when the descriptor has turned readable; it must then be read until it is empty. Stays its owner's.
  void watch(int descriptor, std::function<void()> on_readable);
  void every(std::chrono::milliseconds interval, std::function<void()> call);
  void on_signal(const std::vector<int>& numbers, std::function<void(int)> call);

  // Calls `heavy` on a thread of its own and `then` from the loop: what takes longer than others may wait. What is not over when the server ends is
  // finished, and nobody hears of it.
  void aside(std::function<void()> heavy, std::function<void()> then);

  // Until stop().
  void run();
  void stop();

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::protocol::http
