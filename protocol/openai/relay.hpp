// One generating request on its way: it submits the job, gives what the engine says to the answer, and the answer's words to the client. A stream
// asks the engine for more only as the client takes what it has (credit), and is cancelled there when the client goes. A job of several prompts is as
// many requests to the engine and one to the client: it begins when all are accepted, ends when all have ended, and fails when one does. It knows no
// API's form.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/client/client.hpp"
#include "protocol/http/exchange.hpp"
#include "protocol/openai/front_desk.hpp"
#include "protocol/openai/job.hpp"

namespace althing::protocol::openai {

// What relays need of whoever runs them; outlives them.
struct RelayHost {
  Client& client;
  Observer& observer;
  // After the client was used outside of its own poll(): what came meanwhile must be looked at.
  std::function<void()> pump;
};

class Relay : public std::enable_shared_from_this<Relay> {
 public:
  static constexpr std::uint32_t credit = 16;  // deltas on the way to one client

  // `on_over` is called once, when the request has ended or its client has gone; with what it has used.
  Relay(RelayHost& host, std::shared_ptr<http::Exchange> exchange, Job job, std::function<void(const TokenCounts&)> on_over);
  // REQUIRES: once. What cannot be submitted is answered at once.
  void start();
  // A stream that has told its client nothing for `silence` tells it a comment, which clients pass over: proxies cut connections that rest.
  void keep_alive(std::chrono::steady_clock::time_point now, std::chrono::milliseconds silence);
  // Cancels what runs in the engine and tells the client why; nothing when it is over.
  void end(const Error& why);
  bool is_over() const { return over_; }

 private:
  // One request to the engine.
  struct Part {
    std::string id;
    bool accepted = false;
    std::uint32_t held = 0;  // deltas that no credit was granted for
    std::optional<wire::Done> done{};
  };

  Status submit(wire::Submit submit);
  void on(std::size_t part, const wire::Accepted& accepted);
  void on(std::size_t part, wire::Delta delta);
  void on(std::size_t part, const wire::Done& done);
  void on(std::size_t part, const Error& error);
  void tell(std::size_t part, const wire::Delta& delta);
  void write(std::string_view words);
  wire::Done ends() const;
  void fail(const Error& error);
  void cancel_parts();
  void drained();
  bool settle(Part& part);  // true: credit was granted
  void gone();
  void over();

  RelayHost& host_;
  std::shared_ptr<http::Exchange> exchange_;
  Job job_;
  std::function<void(const TokenCounts&)> on_over_;
  std::uint32_t choices_ = 1;  // of each prompt
  std::vector<Part> parts_;
  std::vector<std::pair<std::size_t, wire::Delta>> early_;  // of parts that were accepted before others; no more than their credit
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now(), spoke_ = began_;
  TokenCounts counts_;
  bool begun_ = false, first_ = true, over_ = false;
};

}  // namespace althing::protocol::openai
