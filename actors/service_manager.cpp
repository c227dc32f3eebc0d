// See the header.
#include "actors/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "actors/control_channel.hpp"

namespace althing::actors {

Status tell_service_manager(const std::string& socket, std::string_view text) {
  if (socket.empty()) return Ok{};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((socket[0] != '/' && socket[0] != '@') || socket.size() < 2 || socket.size() >= sizeof address.sun_path)
    return Error{ErrorCode::invalid_argument, "NOTIFY_SOCKET is '" + socket + "', which is neither a path nor @ and a name; unset it",
                 "notify-socket"};
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  const Descriptor descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  if (!descriptor || ::sendto(descriptor.get(), text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length) < 0)
    return Error{ErrorCode::io, "the service manager at NOTIFY_SOCKET " + socket + " cannot be told: " + std::strerror(errno), "notify-socket"};
  return Ok{};
}

}  // namespace althing::actors
