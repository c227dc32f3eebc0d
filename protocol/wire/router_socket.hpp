// The server's end of the wire: one ZeroMQ ROUTER with every option set whose default hurts, as plain frames. Not thread-safe: one thread owns it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/curve/key_ring.hpp"
#include "protocol/curve/zap.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire {

// What encrypts the socket, and who may come in.
struct RouterKeys {
  std::shared_ptr<const curve::SecretKey> server;
  std::shared_ptr<const curve::KeyPair> listed;  // in the ring: the door is tried with it before it is opened
  std::shared_ptr<const curve::KeyRing> ring;
  std::function<void(curve::ZapResult)> on_answer;  // to a handshake, on a thread of the socket's own; may be null
};

class RouterSocket {
 public:
  // What bind() would refuse about the text of an endpoint; `encrypted`: with keys, which let it be on any interface.
  static Status check(const std::string& endpoint, bool encrypted);
  // `endpoint` is tcp://HOST:PORT, on loopback unless there are keys; port 0 picks one. With keys, the door is tried on loopback first, where nobody
  // knows it. Errors: invalid_argument (another transport, a host that is not loopback, no port), io (port in use: says what to do), internal (a door
  // that let the wrong ones in).
  static Result<RouterSocket> bind(const std::string& endpoint, const Limits& limits, const std::optional<RouterKeys>& keys = std::nullopt);
  RouterSocket(RouterSocket&&) noexcept;
  RouterSocket& operator=(RouterSocket&&) noexcept;
  // Gives what is already sent half a second to leave.
  ~RouterSocket();

  // Nobody new comes in from here on, or again; connections that there are stay. Errors: io (somebody else has the port meanwhile).
  void close_door();
  Status open_door();

  // With the port that was bound.
  const std::string& endpoint() const;

  // Waits until a message can be received or the descriptor `wakeup` is readable.
  struct Readable {
    bool socket = false;
    bool wakeup = false;
  };
  Readable wait(int wakeup, std::chrono::milliseconds time) const;

  struct Received {
    std::vector<std::string> frames;  // frames[0] is the sender's route
    std::string key;                  // of the sender, as Z85, proven in its handshake; "" where there are no keys
    int connection = -1;              // the descriptor that it came by; -1 where there are no keys
  };
  // nullopt when nothing is there.
  std::optional<Received> receive();
  // Ends all connections but these descriptors, with or without a session, and returns how many; whoever may comes back.
  std::size_t cut_all_but(const std::vector<int>& connections) const;

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
