// See loopback_address.hpp. Nothing here asks a resolver: a name that a hosts file points elsewhere cannot open the listener to the network.
#include "monitoring/loopback_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace althing::monitoring {
namespace {

Error invalid(std::string_view text, const std::string& why) {
  return {ErrorCode::invalid_argument,
          "the address \"" + std::string(text) + "\" " + why + "; expected HOST:PORT such as 127.0.0.1:9464 (port 0 picks one)", "address"};
}

bool is_loopback_ipv4(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

// The socket library's form of an address that parse_loopback_address gave.
class SocketAddress {
 public:
  explicit SocketAddress(const LoopbackAddress& address) : is_ipv6_(address.is_ipv6()) {
    v4_.sin_family = AF_INET;
    v4_.sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &v4_.sin_addr);
    v6_.sin6_family = AF_INET6;
    v6_.sin6_port = htons(address.port);
    v6_.sin6_addr = in6addr_loopback;
  }
  int family() const { return is_ipv6_ ? AF_INET6 : AF_INET; }
  const sockaddr* get() const { return is_ipv6_ ? reinterpret_cast<const sockaddr*>(&v6_) : reinterpret_cast<const sockaddr*>(&v4_); }
  socklen_t size() const { return is_ipv6_ ? sizeof v6_ : sizeof v4_; }

 private:
  bool is_ipv6_;
  sockaddr_in v4_{};
  sockaddr_in6 v6_{};
};

}  // namespace

std::string LoopbackAddress::text() const { return (is_ipv6() ? "[" + host + "]" : host) + ":" + std::to_string(port); }

Result<LoopbackAddress> parse_loopback_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return invalid(text, "has no port");
  std::string host(text.substr(0, colon));
  const std::string_view digits = text.substr(colon + 1);

  LoopbackAddress address;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size())
    return invalid(text, "has the port \"" + std::string(digits) + "\", which is not a number from 0 to 65535");

  if (host == "localhost") host = "127.0.0.1";
  if (host == "[::1]")
    host = "::1";
  else if (!is_loopback_ipv4(host))
    return invalid(text, "has the host \"" + host + "\", which is not loopback (127.0.0.0/8, [::1] or localhost): the page has no authentication");
  address.host = host;
  return address;
}

Status check_can_listen(const LoopbackAddress& address) {
  const auto refuse = [&](int error) -> Status {
    std::string what = "cannot listen on " + address.text() + ": " + std::strerror(error);
    if (error == EADDRINUSE) what += "; another program has this port: stop it, or choose another port (0 picks a free one)";
    if (error == EACCES) what += "; choose a port above 1023 (0 picks a free one)";
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) what += "; this machine has no such address: use 127.0.0.1";
    return Error{ErrorCode::io, what, "address"};
  };
  const SocketAddress where(address);
  const int fd = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return refuse(errno);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, where.get(), where.size()) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? Status{Ok{}} : refuse(error);
}

void knock(const LoopbackAddress& address) {
  const SocketAddress where(address);
  const int fd = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  static_cast<void>(connect(fd, where.get(), where.size()));
  close(fd);
}

}  // namespace althing::monitoring
