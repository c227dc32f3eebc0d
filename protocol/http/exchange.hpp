// One request and its answer, between the connection that carries them and the route that makes the answer. The route may keep it, and may answer at
// once, later, or piece by piece; the connection takes what there is, says when all of it has left, and when the client is gone. One thread only.
//
// A stream's bytes are bounded by whoever makes them: a route asks its source for more only when on_drained says so.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/http/message.hpp"

namespace althing::protocol::http {

class Exchange {
 public:
  // `chunked`: the client can read chunks (HTTP/1.1). `keep_alive`: it wants the connection to stay.
  Exchange(Request request, bool chunked, bool keep_alive)
      : request_(std::move(request)), chunked_(chunked), keep_alive_(keep_alive), head_only_(request_.method == "HEAD") {}

  // --- the route's side ---
  const Request& request() const { return request_; }
  // The whole answer. REQUIRES: nothing was answered yet.
  void respond(const Response& response);
  // The head of an answer whose body follows in pieces. REQUIRES: nothing was answered yet; the response has no body.
  void start(const Response& response);
  void write(std::string_view bytes);
  void finish();
  bool started() const { return started_; }
  bool finished() const { return finished_; }
  // The client has gone, or does not read: nothing that is written now reaches anybody.
  bool gone() const { return gone_; }
  std::uint16_t status() const { return status_; }
  std::uint64_t bytes() const { return bytes_; }
  // Called when all that was written has left for the client, and once when it is gone before the answer's end. They may be set until they are
  // called.
  std::function<void()> on_drained, on_gone;

  // --- the connection's side ---
  // Called when there is something new to take, or the answer is complete.
  std::function<void()> on_output;
  std::string take() { return std::exchange(output_, {}); }
  bool has_output() const { return !output_.empty(); }
  void drained();
  void lost();
  // After the answer: whether the connection may carry another request.
  bool keeps_alive() const { return keep_alive_; }
  void close_after() { keep_alive_ = false; }

 private:
  void told();

  Request request_;
  bool chunked_, keep_alive_, head_only_;
  bool started_ = false, finished_ = false, gone_ = false;
  std::uint16_t status_ = 0;
  std::uint64_t bytes_ = 0;  // of the answer, as it was written
  std::string output_;
};

}  // namespace althing::protocol::http
