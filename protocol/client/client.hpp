// The C++ client: one DEALER socket, any number of streams. Single-threaded: poll() does all IO and calls back.
//
//   Client client = *Client::connect({.endpoint = "tcp://127.0.0.1:4550"});
//   client.submit({.request_id = "r1", .messages = …}, handler);
//   while (client.open_streams() > 0) client.poll(100ms);
//
// It sends Hello and pings, grants credit as the handler consumes, and ends every stream exactly once: with Done, with the server's error, with
// unavailable when the server is gone (no answer to pings for `timeout`), or with core_lost when it came back and does not know the request. A
// connection that breaks meanwhile, because the serving process died too, is no end: streams go on behind the last message that came.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "protocol/wire/codec.hpp"

namespace althing::protocol {

struct ClientOptions {
  std::string endpoint = "tcp://127.0.0.1:4550";
  std::string name = "althing-client";
  wire::Encoding encoding = wire::Encoding::capnp;
  std::chrono::milliseconds timeout{5000};
  Limits limits;
};

// What a stream hears, in order; Done or Error last and once.
using StreamEvent = std::variant<wire::Accepted, wire::Delta, wire::Done, Error>;
// It may call submit and cancel, but not poll, and must not destroy the client.
using StreamHandler = std::function<void(const StreamEvent&)>;

class Client {
 public:
  // Connects and waits for Welcome. Errors: unavailable (nobody answered: says the endpoint and what to start), version, invalid_argument.
  static Result<Client> connect(const ClientOptions& options);
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const wire::Welcome& server() const;
  // The request id is made when empty. Errors: invalid_argument when the id is already open here.
  Result<std::string> submit(wire::Submit submit, StreamHandler handler);
  void cancel(const std::string& request_id);
  // Handles what has come, waits at most `wait` for something to come.
  void poll(std::chrono::milliseconds wait);
  std::size_t open_streams() const;

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::protocol
