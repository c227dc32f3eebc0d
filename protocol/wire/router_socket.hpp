// The server's end of the wire: one ZeroMQ ROUTER with every option set whose default hurts, as plain frames. Not thread-safe: one thread owns it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire {

class RouterSocket {
 public:
  // What bind() would refuse about the text of an endpoint.
  static Status check(const std::string& endpoint);
  // `endpoint` is tcp://HOST:PORT on loopback; port 0 picks one. Errors: invalid_argument (another transport, a host that is not loopback, no port),
  // io (port in use: says what to do).
  static Result<RouterSocket> bind(const std::string& endpoint, const Limits& limits);
  RouterSocket(RouterSocket&&) noexcept;
  RouterSocket& operator=(RouterSocket&&) noexcept;
  // Gives what is already sent half a second to leave.
  ~RouterSocket();

  // With the port that was bound.
  const std::string& endpoint() const;

  // Waits until a message can be received or the descriptor `wakeup` is readable.
  struct Readable {
    bool socket = false;
    bool wakeup = false;
  };
  Readable wait(int wakeup, std::chrono::milliseconds time) const;

  // frames[0] is the sender's route. nullopt when nothing is there.
  std::optional<std::vector<std::string>> receive();

  enum class Sent : std::uint8_t { sent, full, gone };
  // Never blocks. `delimiter` puts an empty frame after the route, for clients that work like REQ. full: the peer does not read, and the queue to it
  // is as long as it may be. gone: there is no such peer any more.
  Sent send(std::string_view route, bool delimiter, std::string_view header, std::string_view body);

 private:
  struct State;
  explicit RouterSocket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// "ZeroMQ 4.3.4, Cap'n Proto 0.9.2": what this program runs with.
std::string library_versions();

}  // namespace althing::protocol::wire
