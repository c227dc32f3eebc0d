// A raw client for tests of the HTTP server: it sends what it is told, also what no browser would send, and reads with a deadline.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "monitoring/http_endpoint.hpp"
#include "monitoring/loopback_address.hpp"

namespace althing::monitoring {

// A connected client; closes when it goes.
class Client {
 public:
  explicit Client(const HttpEndpoint& endpoint) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = parse_loopback_address(endpoint.address());
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address->port);
    inet_pton(AF_INET, address->host.c_str(), &to.sin_addr);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) throw std::runtime_error("cannot connect to " + endpoint.address());
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The server may have closed already: what could not be sent is not an error of the test.
  void send(const std::string& bytes) { static_cast<void>(!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL)); }

  // Until `wanted` has come; what came. At most ten seconds.
  std::string read_until(const std::string& wanted) {
    char c = 0;
    pollfd wait{fd_, POLLIN, 0};
    std::string all;
    while (all.find(wanted) == std::string::npos && poll(&wait, 1, 10'000) == 1 && recv(fd_, &c, 1, 0) == 1) all += c;
    return all;
  }

  // Everything until the server closes; at most ten seconds.
  std::string read_all() {
    std::string all;
    char buffer[4096];
    pollfd wait{fd_, POLLIN, 0};
    while (poll(&wait, 1, 10'000) == 1) {
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all + "(the server did not close in 10 s)";
  }

 private:
  int fd_;
};

inline std::string ask(const HttpEndpoint& endpoint, const std::string& request) {
  Client client(endpoint);
  client.send(request);
  return client.read_all();
}

inline std::string get(const HttpEndpoint& endpoint, const std::string& path) {
  return ask(endpoint, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
}

inline std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

}  // namespace althing::monitoring
