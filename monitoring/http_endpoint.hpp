// GET /metrics, /live and /ready on one address, loopback unless told otherwise. Answers come from callbacks on the server's few threads.
// /live is 200 while the process can answer; /ready is 200 with a JSON body only when `ready` says so, else 503 with the reason.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::monitoring {

struct Readiness {
  bool ready = false;
  std::string json;  // the body, whatever the answer
};

struct HttpHandlers {
  std::function<std::string()> metrics;
  std::function<Readiness()> ready;
};

class HttpEndpoint {
 public:
  // `address` is HOST:PORT; port 0 picks one. Errors: io (port in use: says so and what to do), invalid_argument (a host that is not loopback, a bad
  // port), unsupported (::1 where the web server library has no IPv6, as Debian's).
  static Result<std::unique_ptr<HttpEndpoint>> start(const std::string& address, HttpHandlers handlers);
  virtual ~HttpEndpoint() = default;
  virtual std::string address() const = 0;  // with the port that was bound
};

}  // namespace althing::monitoring
