// The client's ZeroMQ socket: frames out, frames in, nothing else. It never throws and never blocks but in wait(); what does not fit ZeroMQ's queues
// is reported, not waited for.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "protocol/wire/codec.hpp"

namespace althing::protocol {

class Link {
 public:
  // Errors: invalid_argument (the endpoint is not one), io. Connecting goes on in the background: a server that is not there yet is no error.
  static Result<Link> open(const std::string& endpoint, std::size_t frame_bytes_max);

  // False when the outgoing queue is full; nothing was sent then.
  bool send(std::string_view header, std::string_view body);
  // The next frame that is waiting. One that has not the form [empty]? [header] [body] comes back with an empty header.
  std::optional<wire::Frame> receive();
  // Until a frame is waiting or a connection was made, `wait` at most.
  void wait(std::chrono::milliseconds wait);
  // True when the connection was lost and has been made anew since the last call: nothing that was sent or received before can be relied on.
  bool reconnected();

 private:
  Link(zmq::context_t context, zmq::socket_t socket, zmq::socket_t events)
      : context_(std::move(context)), socket_(std::move(socket)), events_(std::move(events)) {}

  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::socket_t events_;  // one message for each handshake with a server
  bool connected_ = false;
};

}  // namespace althing::protocol
