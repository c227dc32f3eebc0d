// The endpoint over civetweb. One callback answers every request before civetweb looks at it, so there are no files, no directories and no
// handlers to traverse into. Everything is bounded: threads, queue, request bytes, the time one client may take, and the chats at once, which have
// threads of their own number: however many chats run, the short answers keep theirs.
// Invariant: no exception of a handler crosses into civetweb's C code; it becomes a 500.
#include "monitoring/http_endpoint.hpp"

#include <civetweb.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <string_view>
#include <thread>

#include "monitoring/http_pages.hpp"
#include "monitoring/loopback_address.hpp"

namespace althing::monitoring {
namespace {

using Clock = std::chrono::steady_clock;

// Most of them wait: a connection that asks nothing holds one until request_timeout_ms, and must not hold up who asks whether the server is alive.
constexpr int short_threads = 48;
constexpr std::chrono::seconds body_wait{10};  // for the whole body of a chat's request
constexpr std::chrono::milliseconds silence_max{500};

// What the callbacks of one endpoint share.
struct Shared {
  HttpHandlers handlers;
  std::atomic<bool> stopping{false};
  std::atomic<int> chats{0};
};

bool write_all(mg_connection* connection, std::string_view bytes) {
  return mg_write(connection, bytes.data(), bytes.size()) == static_cast<int>(bytes.size());
}

void send(mg_connection* connection, const HttpReply& reply, bool with_body) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " ";
  head.append(reason_of(reply.status)).append("\r\nContent-Type: ").append(reply.type);
  head.append("\r\nContent-Length: ").append(std::to_string(reply.body.size())).append("\r\n").append(reply.headers);
  if (reply.headers.find("Cache-Control:") == std::string::npos) head.append("Cache-Control: no-store\r\n");
  head.append("Connection: close\r\n\r\n");
  if (!write_all(connection, head)) return;
  if (with_body && !reply.body.empty()) write_all(connection, reply.body);
}

class Reader : public EventReader {
 public:
  Reader(mg_connection* connection, const std::atomic<bool>& stopping) : connection_(connection), stopping_(stopping) {}

  bool begun() const { return begun_; }
  bool send(std::string_view data) override { return write("data: " + std::string(data) + "\n\n"); }
  bool reads() override { return Clock::now() - wrote_ < silence_max ? !gone_ && !stopping_ : write(":\n\n"); }

 private:
  bool write(const std::string& text) {
    gone_ = gone_ || stopping_ || (!begun_ && !write_all(connection_, head())) || !write_all(connection_, text);
    begun_ = true;
    wrote_ = Clock::now();
    return !gone_;
  }
  static std::string head() {
    return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" + std::string(browser_headers()) +
           "Cache-Control: no-store\r\nConnection: close\r\n\r\n";
  }

  mg_connection* connection_;
  const std::atomic<bool>& stopping_;
  bool begun_ = false, gone_ = false;
  Clock::time_point wrote_ = Clock::now();
};

HttpReply plain(int status, const std::string& why) { return {status, "text/plain; charset=utf-8", why + "\n", std::string(browser_headers())}; }

// The body, or why there is none. Its length must be told: so what is too long is refused before it is read.
std::optional<HttpReply> read_body(mg_connection* connection, long long length, std::string& body) {
  if (length < 0) return plain(411, "say Content-Length");
  if (static_cast<unsigned long long>(length) > HttpEndpoint::chat_bytes_max)
    return plain(413, "the body has " + std::to_string(length) + " bytes; " + std::to_string(HttpEndpoint::chat_bytes_max) + " are allowed");
  const auto deadline = Clock::now() + body_wait;
  std::array<char, 16'384> piece{};
  while (body.size() < static_cast<std::size_t>(length)) {
    const std::size_t wanted = std::min(piece.size(), static_cast<std::size_t>(length) - body.size());
    const int got = mg_read(connection, piece.data(), wanted);
    if (got <= 0 || Clock::now() > deadline) return plain(408, "the body did not come");
    body.append(piece.data(), static_cast<std::size_t>(got));
  }
  return std::nullopt;
}

// One of the chats that may run at once, for as long as it lives.
class ChatPlace {
 public:
  explicit ChatPlace(std::atomic<int>& taken) : taken_(taken), has_(taken.fetch_add(1) < HttpEndpoint::chats_max) {}
  ~ChatPlace() { taken_.fetch_sub(1); }
  ChatPlace(const ChatPlace&) = delete;
  ChatPlace& operator=(const ChatPlace&) = delete;
  explicit operator bool() const { return has_; }

 private:
  std::atomic<int>& taken_;
  bool has_;
};

// Nothing when the stream was the answer.
std::optional<HttpReply> chat(mg_connection* connection, Shared& shared, long long length) {
  const ChatPlace place(shared.chats);
  if (!place)
    return error_reply({ErrorCode::busy, std::to_string(HttpEndpoint::chats_max) + " chats of pages run already; wait until one has ended", ""});
  std::string body;
  if (auto refused = read_body(connection, length, body)) return refused;
  Reader reader(connection, shared.stopping);
  const Status status = shared.handlers.chat(body, reader);
  if (status.ok() && reader.begun()) return std::nullopt;
  const Error error = status.ok() ? Error{ErrorCode::internal, "the chat ended without a word", ""} : status.error();
  if (!reader.begun()) return error_reply(error);
  reader.send(error_event(error));
  return std::nullopt;
}

HttpRequest request_of(mg_connection* connection, const mg_request_info& info) {
  const auto text = [](const char* value) { return std::string_view(value == nullptr ? "" : value); };
  const auto header = [&](const char* name) { return text(mg_get_header(connection, name)); };
  return {text(info.request_method), text(info.local_uri),     text(info.query_string), header("Host"),
          header("Origin"),          header("Sec-Fetch-Site"), header("Content-Type"),  header("If-None-Match")};
}

// civetweb's begin_request; anything but 0 says that the request is answered.
int answer(mg_connection* connection) noexcept {
  const mg_request_info* info = mg_get_request_info(connection);
  auto& shared = *static_cast<Shared*>(info->user_data);
  const HttpRequest request = request_of(connection, *info);
  std::optional<HttpReply> reply;
  try {
    if (request.path != chat_path)
      reply = reply_to(shared.handlers, request);
    else if (reply = refuse_chat(shared.handlers, request); !reply)
      reply = chat(connection, shared, info->content_length);
  } catch (const std::exception&) {
    reply = HttpReply{500, "text/plain; charset=utf-8", "the page could not be made\n", ""};
  }
  if (reply) send(connection, *reply, request.method != "HEAD");
  mg_disable_connection_keep_alive(connection);
  return reply ? reply->status : 200;
}

// civetweb's http_error: what it refuses before our callback, in our form. Its own error page calls gmtime, which two threads must not do at once.
int refuse(mg_connection* connection, int status, const char*) noexcept {
  send(connection, {status, "text/plain; charset=utf-8", "this is not a request that can be answered\n", ""}, true);
  mg_disable_connection_keep_alive(connection);
  return 0;
}

class CivetEndpoint : public HttpEndpoint {
 public:
  explicit CivetEndpoint(HttpHandlers handlers) { shared_.handlers = std::move(handlers); }
  ~CivetEndpoint() override { stop(); }
  CivetEndpoint(const CivetEndpoint&) = delete;
  CivetEndpoint& operator=(const CivetEndpoint&) = delete;

  Status listen(const LoopbackAddress& address);
  std::string address() const override { return bound_.text(); }

 private:
  void stop();

  Shared shared_;
  mg_context* context_ = nullptr;
  LoopbackAddress bound_;
};

Status CivetEndpoint::listen(const LoopbackAddress& address) {
  const std::string where = address.text();
  if (address.is_ipv6() && mg_check_feature(MG_FEATURES_IPV6) == 0)
    return Error{ErrorCode::unsupported,
                 "the civetweb library of this machine was built without IPv6, so " + where + " cannot be served: use 127.0.0.1", "address"};
  const std::string threads = std::to_string(short_threads + (shared_.handlers.chat ? chats_max : 0));
  std::array<const char*, 15> options = {"listening_ports",
                                         where.c_str(),
                                         "num_threads",
                                         threads.c_str(),
                                         "connection_queue",
                                         "64",
                                         "max_request_size",
                                         "8192",
                                         "request_timeout_ms",
                                         "1000",
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
  mg_init_data init{&callbacks, &shared_, options.data()};
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

// Waits for civetweb's threads: no handler runs after this, and chats end within a tenth of a second. Its acceptor looks for the end only every two
// seconds, or when somebody connects; a drain must not wait that long, so we knock until it has seen the end.
void CivetEndpoint::stop() {
  if (context_ == nullptr) return;
  shared_.stopping = true;
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
