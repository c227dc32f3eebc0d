// Where faults are ordered: a unix socket that the supervisor owns, there only with --allow-faults, for its own user only: both ends ask the kernel
// who the other is. One connection brings one order and gets one answer: a word that is an exit code's class, then a sentence.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "actors/control_channel.hpp"
#include "actors/fault_order.hpp"

namespace althing::actors {

class FaultControl {
 public:
  // What to do with an order; nullopt when the answer comes later, by answer().
  using Handler = std::function<std::optional<std::string>(const FaultOrder& order, std::uint64_t id)>;

  // A socket at `path` has mode 0600 from its first moment. `path` "": an abstract one with a random name, which is in no folder and ends with this
  // process, however it ends; a path then begins with '@'. Errors: io, invalid_argument (path too long, taken).
  static Result<FaultControl> listen(const std::string& path);
  FaultControl(FaultControl&&) noexcept = default;
  FaultControl& operator=(FaultControl&&) = delete;
  // Removes the socket.
  ~FaultControl();

  const std::string& path() const { return path_; }
  int descriptor() const { return listener_.get(); }
  // Takes what has come; never waits. Connections that say nothing for a second are closed.
  void serve(const Handler& handler);
  // `text` begins with "ok " or "refused ".
  void answer(std::uint64_t id, const std::string& text);

 private:
  struct Client {
    ControlChannel channel;
    std::chrono::steady_clock::time_point since;
    bool asked = false;
  };

  FaultControl(Descriptor listener, std::string path) : listener_(std::move(listener)), path_(std::move(path)) {}
  void accept_all();

  Descriptor listener_;
  std::string path_;
  std::map<std::uint64_t, Client> clients_;
  std::uint64_t last_id_ = 0;
};

// The other end: one order, one answer. Errors: not_found (nobody of this user listens there), unavailable (no answer), and what the server refuses
// as invalid_argument.
Result<std::string> order_fault(const std::string& path, const FaultOrder& order);

}  // namespace althing::actors
