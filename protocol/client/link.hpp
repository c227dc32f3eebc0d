// The client's ZeroMQ socket: frames out, frames in, nothing else. It never throws and never blocks but in wait(); what does not fit ZeroMQ's queues
// is reported, not waited for.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "protocol/curve/door.hpp"
#include "protocol/wire/codec.hpp"

namespace althing::protocol {

class Link {
 public:
  // Errors: invalid_argument (the endpoint is not one), io. Connecting goes on in the background: a server that is not there yet is no error.
  // `keys` null: without encryption.
  static Result<Link> open(const std::string& endpoint, std::size_t frame_bytes_max, const std::shared_ptr<const curve::ClientKeys>& keys);

  // False when the outgoing queue is full; nothing was sent then.
  bool send(std::string_view header, std::string_view body);
  // The next frame that is waiting. One that has not the form [empty]? [header] [body] comes back with an empty header.
  std::optional<wire::Frame> receive();
  // Until a frame is waiting or a connection was made, `wait` at most.
  void wait(std::chrono::milliseconds wait);
  // Of the frames and of the connection's news; edge-triggered, as ZeroMQ's are.
  std::array<int, 2> descriptors() const;
  // Whether a frame or news wait.
  bool has_input() const;
  // True when the connection was lost and has been made anew since the last call: nothing that was sent or received before can be relied on.
  bool reconnected();
  // Whether there is a connection, as far as reconnected() has heard.
  bool up() const { return up_; }
  // Why the server will never let us in, once it has said so: denied. ZeroMQ tries no more then.
  const std::optional<Error>& refusal();
  // Whether handshakes broke off without a word, which is what a server does that is not the one we have the key of, and may be all that is seen of
  // one that wants a key of somebody who gives none.
  bool handshakes_fail();

 private:
  Link(zmq::context_t context, zmq::socket_t socket, zmq::socket_t events)
      : context_(std::move(context)), socket_(std::move(socket)), events_(std::move(events)) {}
  void hear_events();

  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::socket_t events_;  // one message for each handshake with a server, and for each connection's end
  bool connected_ = false, up_ = false;
  int handshakes_ = 0;  // since reconnected() was last asked
  bool broken_off_ = false;
  bool encrypted_ = false;
  std::optional<Error> refusal_;
};

}  // namespace althing::protocol
