// Bytes as they come over a connection, to the HTTP server with the gateway's routes behind it and no engine behind those. Whatever is sent, what
// comes back are whole answers, each with an id and with JSON where it says so, and the connection ends. The first byte chooses whether callers need
// keys.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "protocol/http/server.hpp"
#include "protocol/openai/gateway.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using fuzz::require;

std::atomic<bool> keys_wanted{false};

class Desk : public openai::Doorkeeper {
 public:
  bool needs_keys() const override { return keys_wanted; }
  std::variant<openai::Caller, http::ErrorReply> admit(const http::Request& head) override {
    if (!keys_wanted || head.authorization == "Bearer right") return openai::Caller{"t", "k"};
    return http::ErrorReply{401, "authentication_error", "invalid_api_key", "no", "", 0};
  }
  std::optional<http::ErrorReply> charge(const openai::Caller&) override { return std::nullopt; }
  void used(const openai::Caller&, std::uint64_t) override {}
};

class Silent : public openai::Observer {
 public:
  void answered(std::string_view, std::uint16_t status, std::uint64_t, bool) override { require(status >= 200, "an answer has a status"); }
  void rejected(openai::Rejection) override {}
  void refused_connection(std::string_view) override {}
  void open_requests(std::size_t) override {}
  void first_event(double) override {}
  void tokens(const openai::TokenCounts&) override {}
  std::string scrape() override { return "numbers"; }
};

// Lives as long as the process: the server's thread is never joined.
struct Service {
  Desk desk;
  Silent silent;
  std::unique_ptr<openai::Gateway> gateway;
  std::unique_ptr<http::Server> server;
  sockaddr_in address{};

  Service() {
    ClientOptions engine;
    engine.endpoint = "tcp://127.0.0.1:1";  // nobody
    auto client = Client::open(engine);
    require(client.ok(), "a client can be made");
    gateway = std::make_unique<openai::Gateway>(openai::GatewayOptions{fuzz::small_format(), true}, *std::move(client), desk, silent);
    http::ServerOptions options;
    options.header_bytes_max = 1024;
    options.body_bytes_max = 4096;
    auto listening = http::Server::listen(options, *gateway);
    require(listening.ok(), "a server can listen");
    server = *std::move(listening);
    const std::string at = server->address();
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(at.substr(at.rfind(':') + 1))));
    std::thread([this] { server->run(); }).detach();
  }
};

// The fuzzer's own clock interrupts system calls.
template <class Call>
ssize_t uninterrupted(Call call) {
  ssize_t result = 0;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

// A connection that was interrupted goes on by itself; when it is made, asking for it again says so.
bool connects(int fd, const sockaddr_in& address) {
  const auto once = [&] { return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address); };
  int result = once();
  while (result != 0 && (errno == EINTR || errno == EALREADY)) result = once();
  return result == 0 || errno == EISCONN;
}

// All that the server says until it closes.
std::string answers_to(const sockaddr_in& address, std::string_view bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(fd >= 0 && connects(fd, address), "the server can be reached");
  while (!bytes.empty()) {
    const ssize_t sent = uninterrupted([&] { return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) break;  // it has heard enough
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  ::shutdown(fd, SHUT_WR);
  std::string said;
  char block[4096];
  for (ssize_t got = 0; (got = uninterrupted([&] { return ::recv(fd, block, sizeof block, 0); })) > 0;)
    said.append(block, static_cast<std::size_t>(got));
  ::close(fd);
  return said;
}

std::string_view header_of(std::string_view head, std::string_view name) {
  const std::size_t at = head.find("\r\n" + std::string(name) + ": ");
  if (at == std::string_view::npos) return "";
  head.remove_prefix(at + name.size() + 4);
  return head.substr(0, head.find("\r\n"));
}

void check_answers(std::string_view said) {
  while (!said.empty()) {
    require(said.starts_with("HTTP/1.1 "), "an answer begins with its status");
    const std::size_t end = said.find("\r\n\r\n");
    require(end != std::string_view::npos, "a head is whole");
    const std::string_view head = said.substr(0, end + 2);
    said.remove_prefix(end + 4);
    if (head.starts_with("HTTP/1.1 100 ")) continue;
    for (const char c : head) require(static_cast<unsigned char>(c) >= 0x20 || c == '\r' || c == '\n', "a head is text");
    require(http::is_request_id(header_of(head, "x-request-id")), "an answer has an id");
    const std::string_view length = header_of(head, "Content-Length");
    std::size_t bytes = 0;
    require(std::from_chars(length.data(), length.data() + length.size(), bytes).ec == std::errc{}, "an answer has a length");
    // The answer to a HEAD says how long it would be.
    if (said.empty() || said.starts_with("HTTP/1.1 ")) continue;
    require(said.size() >= bytes, "a body is whole");
    if (header_of(head, "Content-Type") == "application/json") require(nlohmann::json::accept(said.substr(0, bytes)), "a body is JSON");
    said.remove_prefix(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Service& service = *new Service;
  if (size == 0 || size > 16384) return 0;
  keys_wanted = data[0] % 2 == 1;
  check_answers(answers_to(service.address, {reinterpret_cast<const char*>(data) + 1, size - 1}));
  return 0;
}
