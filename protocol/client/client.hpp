// The C++ client: one DEALER socket, any number of streams. Single-threaded: poll() does all IO and calls back, or does what is due without
// waiting, for a program that watches descriptors() with others of its own.
//
//   Client client = *Client::connect({.endpoint = "tcp://127.0.0.1:4550"});
//   client.submit({.request_id = "r1", .messages = …}, handler);
//   while (client.open_streams() > 0) client.poll(100ms);
//
// It sends Hello and pings, grants credit as the handler consumes, and ends every stream exactly once: with Done, with the server's error, with
// unavailable when the server is gone (no answer to pings for `timeout`), or with core_lost when it came back and does not know the request. A
// connection that breaks meanwhile, because the serving process died too, is no end: streams go on behind the last message that came.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "protocol/curve/door.hpp"
#include "protocol/wire/codec.hpp"

namespace althing::protocol {

struct ClientOptions {
  std::string endpoint = "tcp://127.0.0.1:4550";
  std::string name = "althing-client";
  wire::Encoding encoding = wire::Encoding::capnp;
  std::chrono::milliseconds timeout{5000};
  std::chrono::milliseconds ping_interval_max{1000};  // how old what the server says of itself may be
  Limits limits;
  std::shared_ptr<const curve::ClientKeys> keys{};  // null: without encryption
};

// Who gives a stream new credit: the client, as soon as its handler has returned, or the caller by grant(), when it has done with a delta.
enum class Grants : std::uint8_t { as_handled, by_caller };

// What is known of the server without asking it now.
struct Standing {
  bool welcomed = false;               // ever
  bool current = false;                // the state was heard on the connection that there is now
  std::string state;                   // its own word, in its newest answer to a ping; "" before the first
  std::chrono::milliseconds owing{0};  // since when it owes an answer
};

// What a stream hears, in order; Done or Error last and once.
using StreamEvent = std::variant<wire::Accepted, wire::Delta, wire::Done, Error>;
// It may call submit and cancel, but not poll, and must not destroy the client.
using StreamHandler = std::function<void(const StreamEvent&)>;

class Client {
 public:
  // Connects and waits for Welcome. Errors: unavailable (nobody answered: says the endpoint and what to start), version, invalid_argument,
  // denied (the server does not know the key, or one side is encrypted and the other not).
  static Result<Client> connect(const ClientOptions& options);
  // Does not wait: Welcome is asked for until it comes. Errors: invalid_argument, io.
  static Result<Client> open(const ClientOptions& options);
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  Standing standing() const;
  // REQUIRES: standing().welcomed, which connect() waits for.
  const wire::Welcome& server() const;
  // The request id is made when empty. Errors: invalid_argument when the id is already open here; unavailable before Welcome; too_large; busy.
  Result<std::string> submit(wire::Submit submit, StreamHandler handler, Grants grants = Grants::as_handled);
  void cancel(const std::string& request_id);
  // So many deltas more may come. REQUIRES: the stream's grants are the caller's, and no more than came are granted.
  void grant(const std::string& request_id, std::uint32_t deltas);
  // Handles what has come, waits at most `wait` for something to come.
  void poll(std::chrono::milliseconds wait);
  std::size_t open_streams() const;
  // They turn readable when something may have come. ZeroMQ's are told of once only (edge-triggered): whoever waits for them must poll() until
  // has_input() is false first, and again after each submit, cancel or grant, which may have taken the news.
  std::array<int, 2> descriptors() const;
  bool has_input() const;

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::protocol
