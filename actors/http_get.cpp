// See http_get.hpp. The socket never blocks: every wait is a poll with what is left of the deadline.
#include "actors/http_get.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "actors/control_channel.hpp"

namespace althing::actors {
namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(int fd, short what, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd item{fd, what, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::max<long>(0, left)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

Error nobody(const monitoring::LoopbackAddress& address, const std::string& why) {
  return {ErrorCode::unavailable,
          "nobody answers at http://" + address.text() + " (" + why + "); start a server with `althing serve`, or name the address of its --metrics",
          "address"};
}

// 0, or why there is no connection.
int connect_to(int fd, const monitoring::LoopbackAddress& address, Clock::time_point deadline) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(address.port);
  v6.sin6_addr = in6addr_loopback;
  inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
  const auto* where = address.is_ipv6() ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  if (::connect(fd, where, address.is_ipv6() ? sizeof v6 : sizeof v4) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!wait_for(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string_view line_of(std::string_view& head) {
  const std::size_t end = std::min(head.find("\r\n"), head.size());
  const std::string_view line = head.substr(0, end);
  head.remove_prefix(std::min(end + 2, head.size()));
  return line;
}

// The value of Content-Length; nullopt where there is none.
std::optional<std::size_t> length_in(std::string_view head) {
  constexpr std::string_view name = "content-length:";
  while (!head.empty()) {
    std::string_view line = line_of(head);
    const auto same = [](char a, char b) { return a == b || (a >= 'A' && a <= 'Z' && a - 'A' + 'a' == b); };
    if (line.size() < name.size() || !std::equal(name.begin(), name.end(), line.begin(), [&](char b, char a) { return same(a, b); })) continue;
    line.remove_prefix(name.size());
    while (line.starts_with(' ')) line.remove_prefix(1);
    std::size_t length = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), length).ec == std::errc{}) return length;
  }
  return std::nullopt;
}

}  // namespace

Result<HttpAnswer> http_answer_of(const std::string& bytes) {
  const auto corrupt = [](const char* why) {
    return Error{ErrorCode::corrupt, std::string("what answers there is no Althing server: ") + why, "address"};
  };
  const std::size_t blank = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.") || blank == std::string::npos) return corrupt("it does not speak HTTP");
  std::string_view head(bytes.data(), blank);
  const std::string_view first = line_of(head);
  HttpAnswer answer;
  const auto [end, error] = std::from_chars(first.data() + std::min<std::size_t>(9, first.size()), first.data() + first.size(), answer.status);
  if (error != std::errc{} || answer.status < 100 || answer.status > 599) return corrupt("its first line has no status");
  answer.body = bytes.substr(blank + 4);
  if (const auto length = length_in(head); length && *length != answer.body.size()) return corrupt("its answer was cut off");
  return answer;
}

Result<HttpAnswer> http_get(const monitoring::LoopbackAddress& address, const std::string& path, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const Descriptor socket(::socket(address.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Error{ErrorCode::io, std::string("cannot make a socket: ") + std::strerror(errno), "address"};
  if (const int error = connect_to(socket.get(), address, deadline); error != 0) return nobody(address, std::strerror(error));
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + address.text() + "\r\nConnection: close\r\n\r\n";
  // It is shorter than any socket's buffer.
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return nobody(address, std::strerror(errno));
  std::string bytes;
  std::array<char, 65'536> piece{};
  while (true) {
    if (!wait_for(socket.get(), POLLIN, deadline)) return nobody(address, "no answer within " + std::to_string(timeout.count()) + " ms");
    const ssize_t got = ::recv(socket.get(), piece.data(), piece.size(), 0);
    if (got == 0) return http_answer_of(bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) return nobody(address, std::strerror(errno));
    bytes.append(piece.data(), static_cast<std::size_t>(got));
    if (bytes.size() > http_answer_bytes_max)
      return Error{ErrorCode::too_large, "the answer of " + address.text() + " is over " + std::to_string(http_answer_bytes_max) + " bytes",
                   "address"};
  }
}

}  // namespace althing::actors
