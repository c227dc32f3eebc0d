// SEQPACKET keeps message borders, so a message is either whole or absent; there is no framing to get wrong.
#include "actors/control_channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace althing::actors {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  // At most eight words, so that the last one may hold a sentence.
  std::vector<std::string> words;
  while (words.size() < 7) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) break;
    words.emplace_back(text.substr(0, space));
    text.remove_prefix(space + 1);
  }
  words.emplace_back(text);
  return words;
}

}  // namespace

std::string ControlMessage::text_from(std::size_t first) const {
  std::string text;
  for (std::size_t i = first; i < words.size(); ++i) text += (i == first ? "" : " ") + words[i];
  return text;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Descriptor::release() { return std::exchange(fd_, -1); }

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<std::pair<ControlChannel, ControlChannel>> ControlChannel::pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Error{ErrorCode::io, std::string("cannot make a control channel: ") + std::strerror(errno), ""};
  return std::pair{ControlChannel(Descriptor(ends[0])), ControlChannel(Descriptor(ends[1]))};
}

bool ControlChannel::send(const std::string& message, int descriptor) const {
  std::string text = message.substr(0, message_bytes_max);
  iovec part{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

std::optional<ControlMessage> ControlChannel::receive(std::chrono::milliseconds wait) {
  pollfd item{socket_.get(), POLLIN, 0};
  if (::poll(&item, 1, static_cast<int>(wait.count())) <= 0) return std::nullopt;
  std::array<char, message_bytes_max> buffer{};
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  if (got <= 0) {
    closed_ = true;
    return std::nullopt;
  }
  ControlMessage message;
  for (cmsghdr* item2 = CMSG_FIRSTHDR(&header); item2 != nullptr; item2 = CMSG_NXTHDR(&header, item2)) {
    if (item2->cmsg_level != SOL_SOCKET || item2->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(item2), sizeof(int));
    message.descriptor = Descriptor(fd);
  }
  message.words = words_of({buffer.data(), static_cast<std::size_t>(got)});
  return message;
}

}  // namespace althing::actors
