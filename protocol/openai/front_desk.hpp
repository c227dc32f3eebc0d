// Whom the routes ask and tell: who a caller is and what he may still use, and the numbers of what happened. The program that runs the gateway
// supplies both, because keys need a hash and numbers a place to be shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "protocol/http/error_reply.hpp"
#include "protocol/http/message.hpp"

namespace althing::protocol::openai {

struct Caller {
  std::string tenant;  // "": nobody in particular
  std::string key;     // its name in the file of keys; "" where there are none
};

class Doorkeeper {
 public:
  virtual ~Doorkeeper() = default;
  // Whether callers need a key at all.
  virtual bool needs_keys() const = 0;
  virtual std::variant<Caller, http::ErrorReply> admit(const http::Request& head) = 0;
  // Takes one request from what the caller may send; an answer (429) when he has to wait.
  virtual std::optional<http::ErrorReply> charge(const Caller& caller) = 0;
  // What the request has used, once it is over.
  virtual void used(const Caller& caller, std::uint64_t tokens) = 0;
};

// Why a request got no answer of its route. Names are labels of a metric, so there are only these.
enum class Rejection : std::uint8_t { malformed, no_route, host, key, content_type, draining, not_ready, quota, invalid, engine };
inline constexpr int rejection_count = 10;
constexpr std::string_view name_of(Rejection rejection) {
  constexpr std::string_view names[rejection_count] = {"malformed", "no_route",  "host",  "key",     "content_type",
                                                       "draining",  "not_ready", "quota", "invalid", "engine"};
  return names[static_cast<int>(rejection)];
}

struct TokenCounts {
  std::uint64_t prompt = 0, completion = 0, reasoning = 0;  // reasoning is part of completion
};

class Observer {
 public:
  virtual ~Observer() = default;
  // `route` is one of the routes' names, or "other".
  virtual void answered(std::string_view route, std::uint16_t status, std::uint64_t bytes, bool broken_off) = 0;
  virtual void rejected(Rejection why) = 0;
  virtual void refused_connection(std::string_view why) = 0;
  virtual void open_requests(std::size_t count) = 0;  // of the engine
  virtual void first_event(double seconds) = 0;       // from a request's last byte to the first token's delta
  virtual void tokens(const TokenCounts& counts) = 0;
  virtual std::string scrape() = 0;  // Prometheus' text form
};

}  // namespace althing::protocol::openai
