// What the server says over HTTP, on one address, loopback unless told otherwise: /metrics, /metrics/experts, /live and /ready for machines, and the
// live page at / with what it polls and its chat. Answers come from callbacks on the server's threads: a few for everything that is short, and one
// for each chat. /live is 200 while the process can answer; /ready is 200 with a JSON body only when `ready` says so, else 503 with the reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "monitoring/expert_monitor.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::monitoring {

struct Readiness {
  bool ready = false;
  std::string json;  // the body, whatever the answer
};

// A browser that reads a chat's events (text/event-stream).
class EventReader {
 public:
  virtual ~EventReader() = default;
  // One event: its data, on one line. False when nobody reads any more: it left, took nothing for two seconds, or the endpoint is ending.
  virtual bool send(std::string_view data) = 0;
  // The same question without an event; it writes a comment when there was silence for half a second, because a reader that left is noticed by
  // writing.
  virtual bool reads() = 0;
};

struct HttpHandlers {
  std::function<std::string()> metrics;
  std::function<Readiness()> ready;
  // Where one of these is null its path is not there.
  std::function<ExpertPage()> experts = nullptr;  // of /metrics/experts; what is not found is a 404 with that text
  // JSON that the live page and `althing top` read.
  std::function<std::string()> experts_json = nullptr;
  std::function<std::string()> usage_json = nullptr;  // totals by tenant
  std::function<Readiness()> live = nullptr;
  std::function<std::string(std::uint64_t after)> events = nullptr;
  // Gets the body of a request and runs until its stream ends; an error before the first event becomes the answer's status.
  std::function<Status(const std::string& body, EventReader& reader)> chat = nullptr;
};

class HttpEndpoint {
 public:
  static constexpr int chats_max = 8;
  static constexpr std::size_t chat_bytes_max = 1u << 20;  // the body of a chat's request

  // `address` is HOST:PORT; port 0 picks one. Errors: io (port in use: says so and what to do), invalid_argument (a host that is not loopback, a bad
  // port), unsupported (::1 where the web server library has no IPv6, as Debian's).
  static Result<std::unique_ptr<HttpEndpoint>> start(const std::string& address, HttpHandlers handlers);
  virtual ~HttpEndpoint() = default;
  virtual std::string address() const = 0;  // with the port that was bound
};

}  // namespace althing::monitoring
