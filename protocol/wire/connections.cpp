// See the header. The kernel's list of our descriptors is the only complete one: a peer that has said nothing yet is in no session.
#include "protocol/wire/connections.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace althing::protocol::wire {
namespace {

// The local port of a TCP connection; -1 for everything else, listeners too.
int port_of_connection(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return -1;
}

}  // namespace

std::size_t cut_connections(std::uint16_t port, const std::vector<int>& keep) {
  std::size_t cut = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return cut;
  while (const dirent* entry = ::readdir(folder.get())) {
    const int number = std::atoi(entry->d_name);
    if (number <= 0 || std::find(keep.begin(), keep.end(), number) != keep.end()) continue;
    // A second descriptor of the same thing: ZeroMQ's thread may close the first at any time, and the number may mean something else then.
    const int fd = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) continue;
    if (port_of_connection(fd) == port && ::shutdown(fd, SHUT_RDWR) == 0) ++cut;
    ::close(fd);
  }
  return cut;
}

}  // namespace althing::protocol::wire
