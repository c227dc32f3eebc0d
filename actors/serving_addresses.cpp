// See the header.
#include "actors/serving_addresses.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "actors/control_channel.hpp"

#include "protocol/wire/router_socket.hpp"

namespace althing::actors {
namespace {

Error with_flag(const Error& error, const char* flag) { return {error.code, error.message + " (--" + flag + ")", flag}; }

Result<ServingAddress> loopback_address(const char* flag, const std::string& text) {
  auto address = monitoring::parse_loopback_address(text);
  if (!address) return with_flag(address.error(), flag);
  return ServingAddress{flag, address->text(), address->port, *address};
}

// `address`: HOST:PORT that RouterSocket::check has let pass.
ServingAddress open_address(const std::string& address) {
  return {"bind", address, static_cast<std::uint16_t>(std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10)), std::nullopt};
}

// Listens there for a moment, as the server will.
Status check_open_address(const ServingAddress& address) {
  std::string host = address.text.substr(0, address.text.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_family = host == "*" ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host == "*" ? nullptr : host.c_str(), std::to_string(address.port).c_str(), &hints, &list); code != 0)
    return Error{ErrorCode::io, "cannot listen on " + address.text + ": " + ::gai_strerror(code) + " (--bind)", "bind"};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, [](addrinfo* some) { ::freeaddrinfo(some); });
  const Descriptor fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd && ::bind(fd.get(), list->ai_addr, list->ai_addrlen) == 0 && ::listen(fd.get(), 1) == 0) return Ok{};
  std::string what = "cannot listen on " + address.text + ": " + std::strerror(errno);
  if (errno == EADDRINUSE) what += "; another program has this port: stop it, or choose another port (0 picks a free one)";
  if (errno == EADDRNOTAVAIL) what += "; no interface of this machine has this address: use one of its own, or * for all of them";
  return Error{ErrorCode::io, what + " (--bind)", "bind"};
}

}  // namespace

Result<std::vector<ServingAddress>> serving_addresses(const std::string& bind, const std::string& metrics, bool encrypted) {
  if (auto status = protocol::wire::RouterSocket::check(bind, encrypted); !status) return status.error();
  std::vector<ServingAddress> addresses;
  // After the check above it begins with tcp://. What it let pass and is not loopback is there only with keys.
  auto door = loopback_address("bind", bind.substr(6));
  if (!door && encrypted) door = open_address(bind.substr(6));
  if (!door) return door.error();
  addresses.push_back(std::move(*door));
  if (metrics.empty()) return addresses;
  auto pages = loopback_address("metrics", metrics);
  if (!pages) return pages.error();
  addresses.push_back(std::move(*pages));
  return addresses;
}

Status check_free(const ServingAddress& address) {
  if (!address.loopback) return check_open_address(address);
  if (auto status = monitoring::check_can_listen(*address.loopback); !status) return with_flag(status.error(), address.flag);
  return Ok{};
}

}  // namespace althing::actors
