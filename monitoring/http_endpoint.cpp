// The three pages over civetweb. One callback answers every request before civetweb looks at it, so there are no files, no directories and no
// handlers to traverse into. Everything is bounded: threads, queue, request bytes, and the time one client may take.
// Invariant: no exception of a handler crosses into civetweb's C code; it becomes a 500.
#include "monitoring/http_endpoint.hpp"

#include <civetweb.h>

#include <array>
#include <chrono>
#include <exception>
#include <future>
#include <string_view>
#include <thread>

#include "monitoring/loopback_address.hpp"

namespace althing::monitoring {
namespace {

struct Reply {
  int status = 200;
  std::string_view reason = "OK";
  std::string_view type = "text/plain; charset=utf-8";
  std::string_view extra_header;  // with its line end, or empty
  std::string body;
};

Reply reply_to(const HttpHandlers& handlers, std::string_view method, std::string_view path) {
  if (path != "/metrics" && path != "/live" && path != "/ready")
    return {404, "Not Found", "text/plain; charset=utf-8", "", "there are /metrics, /live and /ready here\n"};
  if (method != "GET" && method != "HEAD")
    return {405, "Method Not Allowed", "text/plain; charset=utf-8", "Allow: GET, HEAD\r\n", "use GET or HEAD\n"};
  if (path == "/live") return {200, "OK", "text/plain; charset=utf-8", "", "live\n"};
  if (path == "/metrics") return {200, "OK", "text/plain; version=0.0.4; charset=utf-8", "", handlers.metrics()};
  Readiness readiness = handlers.ready();
  return {readiness.ready ? 200 : 503, readiness.ready ? "OK" : "Service Unavailable", "application/json", "", std::move(readiness.json)};
}

void send(mg_connection* connection, const Reply& reply, bool with_body) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " ";
  head.append(reply.reason).append("\r\nContent-Type: ").append(reply.type);
  head.append("\r\nContent-Length: ").append(std::to_string(reply.body.size())).append("\r\n").append(reply.extra_header);
  head.append("Cache-Control: no-store\r\nConnection: close\r\n\r\n");
  if (mg_write(connection, head.data(), head.size()) != static_cast<int>(head.size())) return;
  if (with_body && !reply.body.empty()) mg_write(connection, reply.body.data(), reply.body.size());
}

// civetweb's begin_request; anything but 0 says that the request is answered.
int answer(mg_connection* connection) noexcept {
  const mg_request_info* request = mg_get_request_info(connection);
  const auto& handlers = *static_cast<const HttpHandlers*>(request->user_data);
  const std::string_view method = request->request_method == nullptr ? "" : request->request_method;
  const std::string_view path = request->local_uri == nullptr ? "" : request->local_uri;
  Reply reply;
  try {
    reply = reply_to(handlers, method, path);
  } catch (const std::exception&) {
    reply = {500, "Internal Server Error", "text/plain; charset=utf-8", "", "the page could not be made\n"};
  }
  send(connection, reply, method != "HEAD");
  mg_disable_connection_keep_alive(connection);
  return reply.status;
}

// civetweb's http_error: what it refuses before our callback, in our form. Its own error page calls gmtime, which two threads must not do at once.
int refuse(mg_connection* connection, int status, const char*) noexcept {
  send(connection, {status, "Refused", "text/plain; charset=utf-8", "", "this is not a request that can be answered\n"}, true);
  mg_disable_connection_keep_alive(connection);
  return 0;
}

class CivetEndpoint : public HttpEndpoint {
 public:
  explicit CivetEndpoint(HttpHandlers handlers) : handlers_(std::move(handlers)) {}
  ~CivetEndpoint() override { stop(); }
  CivetEndpoint(const CivetEndpoint&) = delete;
  CivetEndpoint& operator=(const CivetEndpoint&) = delete;

  Status listen(const LoopbackAddress& address);
  std::string address() const override { return bound_.text(); }

 private:
  void stop();

  HttpHandlers handlers_;
  mg_context* context_ = nullptr;
  LoopbackAddress bound_;
};

Status CivetEndpoint::listen(const LoopbackAddress& address) {
  const std::string where = address.text();
  if (address.is_ipv6() && mg_check_feature(MG_FEATURES_IPV6) == 0)
    return Error{ErrorCode::unsupported,
                 "the civetweb library of this machine was built without IPv6, so " + where + " cannot be served: use 127.0.0.1", "address"};
  std::array<const char*, 15> options = {"listening_ports",
                                         where.c_str(),
                                         "num_threads",
                                         "4",
                                         "connection_queue",
                                         "64",
                                         "max_request_size",
                                         "8192",
                                         "request_timeout_ms",
                                         "2000",
                                         "enable_keep_alive",
                                         "no",
                                         "tcp_nodelay",
                                         "1",
                                         nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = answer;
  callbacks.http_error = refuse;
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // clients must not be able to write to our stderr
  std::array<char, 256> text{};
  unsigned code = 0;
  mg_init_data init{&callbacks, &handlers_, options.data()};
  mg_error_data error{&code, text.data(), text.size()};
  context_ = mg_start2(&init, &error);
  if (context_ == nullptr) {
    if (Status why = check_can_listen(address); !why) return why;
    return Error{ErrorCode::io, "the metrics page could not be started on " + where + ": " + text.data(), "address"};
  }
  mg_server_port port{};
  if (mg_get_server_ports(context_, 1, &port) != 1)
    return Error{ErrorCode::io, "the metrics page on " + where + " does not tell its port", "address"};
  bound_ = {address.host, static_cast<std::uint16_t>(port.port)};
  return Ok{};
}

// Waits for civetweb's threads: no handler runs after this. Its acceptor looks for the end only every two seconds, or when somebody connects; a drain
// must not wait that long, so we knock until it has seen the end.
void CivetEndpoint::stop() {
  if (context_ == nullptr) return;
  std::promise<void> stopped;
  std::thread knocker([this, until = stopped.get_future()] {
    while (until.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) knock(bound_);
  });
  mg_stop(context_);
  stopped.set_value();
  knocker.join();
  context_ = nullptr;
}

}  // namespace

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::start(const std::string& address, HttpHandlers handlers) {
  Result<LoopbackAddress> parsed = parse_loopback_address(address);
  if (!parsed) return parsed.error();
  auto endpoint = std::make_unique<CivetEndpoint>(std::move(handlers));
  if (Status listening = endpoint->listen(*parsed); !listening) return listening.error();
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace althing::monitoring
