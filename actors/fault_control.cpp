// See the header.
#include "actors/fault_control.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "actors/logging.hpp"

namespace althing::actors {
namespace {

constexpr std::size_t clients_max = 16;
constexpr std::chrono::seconds silence_max{1};
constexpr std::chrono::seconds answer_max{5};

Error refused(ErrorCode code, const std::string& why) { return Error{code, why, "control"}; }

bool is_abstract(const std::string& path) { return path.starts_with('@'); }

struct Address {
  sockaddr_un name{};
  socklen_t size = sizeof(sockaddr_un);
};

// An abstract name is all of its bytes, and has no end of its own.
Result<Address> address_of(const std::string& path) {
  Address address;
  address.name.sun_family = AF_UNIX;
  if (path.empty() || path == "@" || path.size() >= sizeof address.name.sun_path)
    return refused(ErrorCode::invalid_argument, "the control socket's path '" + path + "' has " + std::to_string(path.size()) +
                                                    " characters; use 1 to " + std::to_string(sizeof address.name.sun_path - 1));
  std::memcpy(address.name.sun_path, path.data(), path.size());
  if (is_abstract(path)) {
    address.name.sun_path[0] = '\0';
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  return address;
}

bool connects(int socket, const Address& address) { return ::connect(socket, reinterpret_cast<const sockaddr*>(&address.name), address.size) == 0; }

// What a server that was killed has left: a socket of ours that nobody listens on any more.
bool is_left_over(const Address& address) {
  struct stat status {};
  if (::lstat(address.name.sun_path, &status) != 0 || !S_ISSOCK(status.st_mode) || status.st_uid != ::geteuid()) return false;
  const Descriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && !connects(probe.get(), address) && errno == ECONNREFUSED;
}

// Nobody can take it before us, so that a server always starts; and nobody who may not be asked answers to it, because the other end looks.
std::string random_name() {
  std::random_device device;
  char text[48];
  std::snprintf(text, sizeof text, "@althing-%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

std::string sentence_of(const ControlMessage& message) {
  std::string text;
  for (std::size_t i = 1; i < message.words.size(); ++i) text += (i == 1 ? "" : " ") + message.words[i];
  return text;
}

}  // namespace

Result<FaultControl> FaultControl::listen(const std::string& path) {
  std::string where = path.empty() ? random_name() : path;
  auto address = address_of(where);
  if (!address) return address.error();
  Descriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return refused(ErrorCode::io, std::string("cannot make the control socket: ") + std::strerror(errno));
  if (!is_abstract(where) && is_left_over(*address)) ::unlink(where.c_str());
  // The mask, and not a chmod afterwards: there is no moment in which others could connect.
  const mode_t mask = ::umask(0177);
  const bool bound = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address->name), address->size) == 0;
  const int why = errno;
  ::umask(mask);
  if (!bound)
    return refused(why == EADDRINUSE ? ErrorCode::invalid_argument : ErrorCode::io,
                   "cannot listen on the control socket " + where + ": " + std::strerror(why) + "; give another path with --control");
  if (::listen(listener.get(), clients_max) != 0) return refused(ErrorCode::io, std::string("cannot listen for orders: ") + std::strerror(errno));
  return FaultControl(std::move(listener), std::move(where));
}

FaultControl::~FaultControl() {
  if (!listener_) return;  // moved away
  if (!is_abstract(path_)) ::unlink(path_.c_str());
}

// So many at once: others than our user may come to an abstract socket too, and are only sent away.
void FaultControl::accept_all() {
  for (std::size_t i = 0; i < clients_max && clients_.size() < clients_max; ++i) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (!same_user(socket.get())) continue;
    clients_.emplace(++last_id_, Client{ControlChannel(std::move(socket)), std::chrono::steady_clock::now()});
  }
}

void FaultControl::serve(const Handler& handler) {
  accept_all();
  const auto now = std::chrono::steady_clock::now();
  std::map<std::uint64_t, std::string> answers;
  for (auto next = clients_.begin(); next != clients_.end();) {
    auto& [id, client] = *next++;
    const auto message = client.channel.receive(std::chrono::milliseconds(0));
    if (message && !client.asked) {
      client.asked = true;
      const auto order = fault_order_of(message->words);
      if (!order) {
        answers[id] = "refused " + order.error().message;
      } else if (auto text = handler(*order, id)) {
        answers[id] = *text;
      }
    }
    if (client.channel.closed() || now - client.since > (client.asked ? answer_max : silence_max)) clients_.erase(std::prev(next));
  }
  for (const auto& [id, text] : answers) answer(id, text);
}

void FaultControl::answer(std::uint64_t id, const std::string& text) {
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;
  client->second.channel.send(text);
  clients_.erase(client);
}

Result<std::string> order_fault(const std::string& path, const FaultOrder& order) {
  auto address = address_of(path);
  if (!address) return address.error();
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return refused(ErrorCode::io, std::string("cannot make a socket: ") + std::strerror(errno));
  if (!connects(socket.get(), *address))
    return refused(ErrorCode::not_found, "no server takes faults at " + path + ": " + std::strerror(errno) +
                                             "; start one with --allow-faults, and name the path that its ready file has as \"control\"");
  if (!same_user(socket.get()))
    return refused(ErrorCode::not_found, "the socket " + path + " belongs to another user; only the user that started a server can break it");
  ControlChannel channel(std::move(socket));
  if (!channel.send(to_text(order))) return refused(ErrorCode::unavailable, "the server at " + path + " does not take the order");
  const auto message = channel.receive(answer_max + silence_max);
  if (!message) return refused(ErrorCode::unavailable, "the server at " + path + " gives no answer; its target may have died before it could");
  if (message->words[0] != "ok") return refused(ErrorCode::invalid_argument, sentence_of(*message));
  return sentence_of(*message);
}

}  // namespace althing::actors
