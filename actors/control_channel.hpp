// The line between the supervisor and one child: a SOCK_SEQPACKET pair that carries short text messages and, with them, descriptors. Its end of file
// is how a child learns that the supervisor is gone. Messages are words separated by single spaces; the last may hold free text.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

// Closes on destruction.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  int release();
  void reset();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct ControlMessage {
  std::vector<std::string> words;  // words[0] is the verb
  Descriptor descriptor;           // at most one travels with a message

  // The free text that begins with words[first], as it was sent.
  std::string text_from(std::size_t first) const;
};

class ControlChannel {
 public:
  static constexpr std::size_t message_bytes_max = 32'768;  // a grid may name thousands of replicas

  explicit ControlChannel(Descriptor socket) : socket_(std::move(socket)) {}
  // Two ends; both close on exec (a child gets its end by ChildProcess).
  static Result<std::pair<ControlChannel, ControlChannel>> pair();

  // Never blocks for long; false when the other side is gone or does not read. Thread-safe (one message is one packet).
  bool send(const std::string& message, int descriptor = -1) const;
  // The next message; nullopt when none came in `wait`. `closed()` afterwards tells whether the other side is gone.
  std::optional<ControlMessage> receive(std::chrono::milliseconds wait);
  bool closed() const { return closed_; }
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
  bool closed_ = false;
};

}  // namespace althing::actors
