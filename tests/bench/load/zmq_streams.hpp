// Many streams over ZeroMQ from one thread: a few sessions, each with its share of the streams, all asked for as soon as the server says welcome, or
// when a workload says.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "protocol/wire/codec.hpp"
#include "tests/bench/load/expected.hpp"
#include "tests/support/workload.hpp"

namespace althing::load {

std::string fresh_client_id();

// One DEALER.
class Session {
 public:
  Session(zmq::context_t& context, const std::string& endpoint, const std::string& client_id);

  void hello();
  void send(const protocol::wire::ClientMessage& message);
  // nullopt when nothing has come. An ErrorReply stands for what could not be read.
  std::optional<protocol::wire::ServerMessage> receive();
  zmq::socket_t& socket() { return socket_; }

 private:
  std::string client_id_;
  zmq::socket_t socket_;
};

class ZmqStreams {
 public:
  // `words`: of each answer. With `asks` there is a stream for each of them, and they say when, how long, and what with: lengths are in words.
  ZmqStreams(const Speech& speech, std::string endpoint, std::uint32_t streams, std::uint32_t sessions, std::uint32_t words,
             std::vector<workload::Ask> asks = {});

  // Takes what has come; true when something had.
  bool pump();
  // Until something can be taken.
  void wait(std::chrono::milliseconds time);
  const Tally& tally() const { return tally_; }
  // Of streams that a workload asked for, from when each was due to its first delta, in microseconds.
  const std::vector<double>& first_deltas() const { return first_deltas_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    std::unique_ptr<Check> check;  // null: over
    std::uint64_t sequence = 0;
    bool asked = false, accepted = false;
    Clock::time_point due;
  };

  void hear(std::size_t session, const protocol::wire::ServerMessage& message);
  void hear(std::uint32_t number, const protocol::wire::Delta& delta);
  void greet(std::size_t session);
  void ask(std::uint32_t number);
  bool ask_due();
  void end(std::uint32_t number);
  std::uint32_t words_of(std::uint32_t number) const { return asks_.empty() ? words_ : asks_[number].answer; }
  std::string prompt_of(std::uint32_t number) const;
  void submit(std::size_t session, std::uint32_t number);
  void fail(std::uint32_t number, const std::string& why);
  void ping();

  const Speech& speech_;
  zmq::context_t context_;
  std::vector<Session> sessions_;
  std::vector<Stream> streams_;  // stream i belongs to session i % sessions
  std::uint32_t words_;
  std::vector<workload::Ask> asks_;
  std::vector<std::vector<std::uint32_t>> followers_;  // who goes on from whom
  std::multimap<Clock::time_point, std::uint32_t> due_;
  std::vector<bool> greeted_;  // sessions
  std::vector<double> first_deltas_;
  Tally tally_;
  Clock::time_point pinged_;
};

}  // namespace althing::load
