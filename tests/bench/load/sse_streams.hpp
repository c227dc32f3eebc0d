// Many streams over HTTP from one thread: a connection each, opened a few hundred at a time, all read through one epoll.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/load/expected.hpp"

namespace althing::load {

// Takes the body out of an answer in chunks, as it comes, and the events out of the body.
class EventReader {
 public:
  enum class State : std::uint8_t { head, size, data, data_end, over, broken };

  // Bytes as they came; calls back with each whole event's text behind "data: ".
  template <class Hear>
  void read(std::string_view bytes, const Hear& hear);
  State state() const { return state_; }
  bool has_head() const { return state_ != State::head && state_ != State::broken; }
  // What a head that is no 200 in chunks begins with.
  const std::string& pending() const { return pending_; }

 private:
  bool step(std::string& body);

  State state_ = State::head;
  std::string pending_;  // bytes that are not taken apart yet
  std::string events_;   // of the body, an event that is not whole
  std::size_t left_ = 0;
};

class SseStreams {
 public:
  // `address` is 127.0.0.1:PORT; `model` as the server calls itself.
  SseStreams(const Speech& speech, const std::string& address, std::string model, std::uint32_t streams, std::uint32_t words);
  ~SseStreams();

  // Takes what has come, after waiting so long for something at most; true when something had.
  bool pump(int wait_ms = 0);
  const Tally& tally() const { return tally_; }

 private:
  struct Stream {
    int socket = -1;
    std::unique_ptr<Check> check;  // null: over
    EventReader reader;
    std::string request;  // not sent yet
    bool accepted = false, finished = false, told = false;
    std::uint32_t tokens = 0;
  };

  void open_more();
  void on_ready(std::uint32_t number, std::uint32_t events);
  void hear(Stream& stream, std::string_view event);
  void take(Stream& stream);
  void fail(Stream& stream, const std::string& why);
  void close(Stream& stream);

  const Speech& speech_;
  std::string host_, model_;
  std::uint16_t port_ = 0;
  std::vector<Stream> streams_;
  std::uint32_t words_;
  int epoll_;
  std::uint32_t opened_ = 0, opening_ = 0;  // of them, without an answer's head yet
  std::string buffer_;
  Tally tally_;
};

}  // namespace althing::load
