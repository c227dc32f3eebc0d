// The HTTP server under plain sockets: whoever sends junk, slowly, half, too much or in pieces is answered or cut off in bounded time, and nobody
// else notices. Times are shortened where a test waits for one to pass.
#include "protocol/http/server.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <thread>

namespace althing::protocol::http {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto patience = 20s;

// Paths are what to do.
class TestHandler : public Handler {
 public:
  std::optional<Response> refuse(const Request& head) override {
    if (head.path == "/refused") return Response{403, "no", "text/plain"};
    return std::nullopt;
  }
  void handle(std::shared_ptr<Exchange> exchange) override {
    ++handled;
    const Request& request = exchange->request();
    if (request.path == "/echo") return exchange->respond({200, request.body, "text/plain"});
    if (request.path == "/where") return exchange->respond({200, request.method + " " + request.path, "text/plain"});
    if (request.path == "/heavy")
      return server->aside([this] { may_go.wait(false); }, [exchange] { exchange->respond({200, "heavy", "text/plain"}); });
    exchange->on_gone = [this] { ++gone; };
    exchange->start({200, "", "text/event-stream"});
    if (request.path == "/hang") {
      exchange->write("begun");
      hanging = exchange;
      return;
    }
    // A mebibyte at a time, and no more before it has left.
    const auto write = [this, at = std::weak_ptr(exchange)] {
      const auto stream = at.lock();
      if (!stream || stream->finished()) return;
      if (sent == 16) return stream->finish();
      ++sent;
      stream->write(std::string(1u << 20, 'x'));
    };
    exchange->on_drained = write;
    write();
  }
  void answered(const Exchange& exchange) override {
    ++answers;
    last_status = exchange.status();
  }
  void refused_connection(std::string_view why) override { why == "connections" ? ++full : ++exhausted; }

  std::atomic<int> handled{0}, answers{0}, gone{0}, full{0}, exhausted{0}, sent{0}, last_status{0};
  std::atomic<bool> may_go{false};
  Server* server = nullptr;
  std::shared_ptr<Exchange> hanging;
};

class Socket {
 public:
  explicit Socket(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    std::uint16_t port = 0;
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
    to.sin_port = htons(port);
    ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  bool send(std::string_view bytes) { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()); }
  // More of what the server says; "" when it has closed, or said nothing for `wait`.
  std::string some(std::chrono::milliseconds wait = 10s) {
    pollfd item{fd_, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(wait.count())) <= 0) return "";
    char bytes[65536];
    const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
    return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : "";
  }
  // Until the text holds this, or nothing more comes.
  std::string until(std::string_view what) {
    std::string all;
    for (std::string more = some(); !more.empty(); more = some()) {
      all += more;
      if (all.find(what) != std::string::npos) break;
    }
    return all;
  }
  std::string until_closed() {
    std::string all;
    for (std::string more = some(); !more.empty(); more = some()) all += more;
    return all;
  }

 private:
  int fd_;
};

class HttpServer : public testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    auto listening = Server::listen(options, handler_);
    ASSERT_TRUE(listening.ok()) << listening.error().message;
    server_ = std::move(*listening);
    handler_.server = server_.get();
    address_ = server_->address();
    server_->every(5ms, [this] {
      if (over_) server_->stop();
    });
    thread_ = std::thread([this] { server_->run(); });
  }
  ~HttpServer() override {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  static bool wait_for(const auto& condition) {
    for (const auto deadline = Clock::now() + patience; Clock::now() < deadline; ::poll(nullptr, 0, 2))
      if (condition()) return true;
    return condition();
  }
  std::string ask(std::string_view bytes) {
    Socket socket(address_);
    EXPECT_TRUE(socket.send(bytes));
    return socket.until_closed();
  }
  static int status_of(const std::string& answer) {
    int status = 0;
    if (answer.starts_with("HTTP/1.1 ")) std::from_chars(answer.data() + 9, answer.data() + 12, status);
    return status;
  }

  TestHandler handler_;
  std::unique_ptr<Server> server_;
  std::string address_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

constexpr std::string_view close_line = "Connection: close\r\n\r\n";

TEST_F(HttpServer, bodies_come_by_length_in_chunks_and_byte_by_byte) {
  start();
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").ends_with("\r\n\r\nhello"));
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n")
                  .ends_with("hello"));
  Socket slow(address_);
  for (const char c : std::string_view("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"))
    ASSERT_TRUE(slow.send({&c, 1}));
  EXPECT_TRUE(slow.until_closed().ends_with("hi"));
}

TEST_F(HttpServer, connections_are_kept_and_pipelined_requests_are_answered_in_order) {
  start();
  Socket socket(address_);
  std::string all;
  for (int i = 0; i < 50; ++i) all += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n" + std::to_string(1000 + i);
  ASSERT_TRUE(socket.send(all + "GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)));
  const std::string answers = socket.until_closed();
  std::size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = answers.find("\r\n\r\n" + std::to_string(1000 + i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_TRUE(answers.ends_with("GET /where"));
}

TEST_F(HttpServer, what_is_done_aside_keeps_nobody_else_waiting) {
  start();
  std::vector<std::unique_ptr<Socket>> heavy;
  for (int i = 0; i < 4; ++i) {
    heavy.push_back(std::make_unique<Socket>(address_));
    ASSERT_TRUE(heavy.back()->send("GET /heavy HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)));
  }
  ASSERT_TRUE(wait_for([&] { return handler_.handled == 4; }));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(ask("GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)).ends_with("GET /where"));
  EXPECT_EQ(handler_.answers, 20);
  heavy.pop_back();  // one does not wait for its answer
  handler_.may_go = true;
  handler_.may_go.notify_all();
  for (const auto& socket : heavy) EXPECT_TRUE(socket->until_closed().ends_with("heavy"));
}

TEST_F(HttpServer, a_request_behind_one_that_streams_waits_and_is_no_farewell) {
  start();
  Socket socket(address_);
  ASSERT_TRUE(socket.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_NE(socket.until("chunked").find("200 OK"), std::string::npos);
  ASSERT_TRUE(socket.send("GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)));
  EXPECT_TRUE(socket.until_closed().ends_with("GET /where"));
  EXPECT_EQ(handler_.gone, 0);
}

TEST_F(HttpServer, every_answer_has_a_request_id_the_clients_own_if_it_may_be_repeated) {
  start();
  EXPECT_NE(ask("GET /where HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-1\r\n" + std::string(close_line)).find("x-request-id: mine-1\r\n"),
            std::string::npos);
  for (const char* request : {"GET /where HTTP/1.1\r\nHost: x\r\nX-Request-Id: no good\r\nConnection: close\r\n\r\n", "junk\r\n\r\n",
                              "GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"})
    EXPECT_NE(ask(request).find("x-request-id: req_"), std::string::npos) << request;
}

TEST_F(HttpServer, junk_is_answered_with_400_and_ends_the_connection) {
  start();
  for (const std::string& junk :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"),
        std::string("GET /a\x01 HTTP/1.1\r\n\r\n")}) {
    const std::string answer = ask(junk);
    EXPECT_EQ(status_of(answer), 400) << junk << "\n" << answer;
    EXPECT_NE(answer.find("{\"error\":{\"message\":"), std::string::npos) << answer;
  }
  EXPECT_EQ(handler_.handled, 0);
  EXPECT_TRUE(ask("GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)).ends_with("GET /where"));
}

TEST_F(HttpServer, what_is_too_large_is_refused_before_it_is_read) {
  ServerOptions options;
  options.body_bytes_max = 1000;
  start(options);
  EXPECT_EQ(status_of(ask("GET / HTTP/1.1\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n")), 431);
  EXPECT_EQ(status_of(ask("GET /" + std::string(20'000, 'a'))), 431);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")), 413);
  // All of it is sent, so that bytes wait unread when the answer goes.
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + std::string(200'000, 'a'))), 413);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(2048, 'a') + "\r\n0\r\n\r\n")),
            413);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n" + std::string(1000, 'a'))), 200);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\n\r\n")), 411);
}

TEST_F(HttpServer, a_refused_request_with_a_body_ends_the_connection_and_one_without_does_not) {
  start();
  const std::string last = "GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line);
  EXPECT_TRUE(ask("GET /refused HTTP/1.1\r\nHost: x\r\n\r\n" + last).ends_with("GET /where"));
  const std::string answer = ask("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + last);
  EXPECT_EQ(status_of(answer), 403);
  EXPECT_EQ(answer.find("GET /where"), std::string::npos);
}

TEST_F(HttpServer, who_expects_to_be_told_is_told_to_go_on) {
  start();
  Socket socket(address_);
  ASSERT_TRUE(socket.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"));
  EXPECT_EQ(socket.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(socket.send("hi"));
  EXPECT_TRUE(socket.until_closed().ends_with("hi"));
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: wonders\r\n\r\n")), 417);
  // What is refused anyway need not be sent.
  EXPECT_EQ(status_of(ask("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")), 403);
}

TEST_F(HttpServer, head_is_get_without_a_body_and_old_clients_get_a_closed_connection) {
  start();
  const std::string head = ask("HEAD /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line));
  EXPECT_EQ(status_of(head), 200);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  const std::string old = ask("GET /where HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(old.ends_with("GET /where")) << old;
  const std::string stream = ask("GET /big HTTP/1.0\r\n\r\n");
  EXPECT_EQ(stream.find("chunked"), std::string::npos);
  EXPECT_EQ(stream.size() - stream.find("\r\n\r\n") - 4, 16u << 20);
}

TEST_F(HttpServer, targets_may_name_the_host_and_have_a_query) {
  start();
  EXPECT_TRUE(ask("GET http://any.example:80/where?a=/b HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)).ends_with("GET /where"));
  EXPECT_TRUE(ask("GET /where?a=/b HTTP/1.1\r\nHost: x\r\n" + std::string(close_line)).ends_with("GET /where"));
}

TEST_F(HttpServer, slow_and_silent_clients_are_cut_off) {
  ServerOptions options;
  options.header_time = 150ms;
  options.body_time = 150ms;
  options.idle_time = 150ms;
  start(options);
  EXPECT_EQ(ask(""), "");  // said nothing, is told nothing
  EXPECT_EQ(status_of(ask("GET /where HTTP/1.1\r\nHos")), 408);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel")), 408);
  const std::string idle = ask("GET /where HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(idle.ends_with("GET /where")) << "answered, and closed without another word: " << idle;
  // Dripping does not buy time.
  Socket drip(address_);
  const auto began = Clock::now();
  while (drip.send("G") && Clock::now() - began < patience)
    if (const std::string said = drip.some(20ms); !said.empty()) break;
  EXPECT_LT(Clock::now() - began, patience);
  EXPECT_TRUE(wait_for([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServer, truncated_requests_end_quietly) {
  start();
  for (const char* part : {"GET", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe",
                           "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"}) {
    Socket socket(address_);
    ASSERT_TRUE(socket.send(part));
    socket.half_close();
    EXPECT_EQ(status_of(socket.until_closed()) % 400, 0) << part;
  }
  EXPECT_TRUE(wait_for([&] { return server_->connections() == 0; }));
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(HttpServer, a_client_that_goes_during_its_stream_is_noticed) {
  start();
  for (const bool half : {false, true}) {
    const int before = handler_.gone;
    Socket socket(address_);
    ASSERT_TRUE(socket.send("GET /hang HTTP/1.1\r\nHost: x\r\n\r\n"));
    ASSERT_NE(socket.until("begun").find("begun"), std::string::npos);
    half ? socket.half_close() : socket.close();
    EXPECT_TRUE(wait_for([&] { return handler_.gone == before + 1; })) << half;
  }
}

TEST_F(HttpServer, a_client_that_reads_nothing_holds_a_bounded_stream_and_is_dropped) {
  ServerOptions options;
  options.write_time = 300ms;
  start(options);
  Socket socket(address_);
  ASSERT_TRUE(socket.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(wait_for([&] { return handler_.gone == 1; }));
  EXPECT_LT(handler_.sent, 16) << "what the kernel holds for it, and a mebibyte of ours";
}

TEST_F(HttpServer, connections_above_the_bound_are_told_so) {
  ServerOptions options;
  options.connections_max = 2;
  start(options);
  Socket first(address_), second(address_);
  ASSERT_TRUE(first.send("GET /where HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_TRUE(second.send("GET /where HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(first.until("GET /where").find("200 OK"), std::string::npos);
  EXPECT_NE(second.until("GET /where").find("200 OK"), std::string::npos);
  const std::string third = ask("GET /where HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status_of(third), 503);
  EXPECT_NE(third.find("Retry-After: 1"), std::string::npos);
  EXPECT_EQ(handler_.full, 1);
  first.close();
  EXPECT_TRUE(wait_for([&] { return status_of(ask("GET /where HTTP/1.1\r\nHost: x\r\n" + std::string(close_line))) == 200; }));
}

TEST_F(HttpServer, without_descriptors_it_waits_and_does_not_spin) {
  start();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  Socket waiting(address_);  // has a descriptor; the server will want one for its side
  ASSERT_NE((waiting.send("GET /where HTTP/1.1\r\nHost: x\r\n\r\n"), waiting.until("GET /where")), "");
  const int lowest = ::dup(0);
  ::close(lowest);
  Socket refused(address_);
  ASSERT_TRUE(wait_for([&] { return server_->connections() == 2; }));
  const rlimit none{static_cast<rlim_t>(lowest) + 2, before.rlim_max};
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);  // the connection that will find no descriptor at the other side
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(probe, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  EXPECT_TRUE(wait_for([&] { return handler_.exhausted >= 3; }));
  const int tries = handler_.exhausted;
  timespec spent[2];
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent[0]);
  EXPECT_TRUE(wait_for([&] { return handler_.exhausted >= tries + 3; }));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent[1]);
  EXPECT_LT(static_cast<double>(spent[1].tv_sec - spent[0].tv_sec) + 1e-9 * static_cast<double>(spent[1].tv_nsec - spent[0].tv_nsec), 0.1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(wait_for([&] { return server_->connections() == 3; })) << "whoever waited is served";
  ::close(probe);
}

TEST_F(HttpServer, an_address_that_is_none_or_taken_is_an_error_that_says_so) {
  start();
  ServerOptions options;
  options.host = "localhost";
  EXPECT_EQ(Server::listen(options, handler_).error().code, ErrorCode::invalid_argument);
  options.host = "127.0.0.1";
  options.port = static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
  const auto taken = Server::listen(options, handler_);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::io);
  EXPECT_NE(taken.error().message.find("another program has this port"), std::string::npos) << taken.error().message;
}

}  // namespace
}  // namespace althing::protocol::http
