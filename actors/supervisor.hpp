// The supervisor: no model weights in use, no sockets to clients. It starts one core process and one process a rank, owns the communicator's segment
// of each epoch, and is the only one who decides membership. A rank's death ends its epoch: the segment is aborted, the core told, the rank started
// again, and a new epoch announced to all. The core's death does the same with the ranks kept. Too many deaths in a minute end the server with a
// distinct code. Its own death ends every child (kernel and control line).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "actors/certificates.hpp"
#include "actors/child_process.hpp"
#include "actors/settings.hpp"
#include "gpu/comm/shared_memory_communicator.hpp"

namespace althing::actors {

class Supervisor {
 public:
  // `arguments` is how this process was started; children get the same and their role.
  Supervisor(ServeSettings settings, std::vector<std::string> arguments);

  // Until SIGTERM or SIGINT, or a failure that cannot be repaired. Returns the exit code.
  // REQUIRES: called from the main thread, before any other thread exists.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  Status start_core();
  Status start_rank(std::uint32_t rank);
  Result<ChildProcess> start_child(std::vector<std::string> role);
  void new_epoch();
  void wait_for_events();
  void on_signal();
  void on_core_message(const ControlMessage& message);
  void on_rank_message(std::uint32_t rank, const ControlMessage& message);
  void on_failed(const std::string& who, const ControlMessage& message);
  void on_stuck(std::uint64_t epoch, const std::string& ranks);
  void watch_joining();
  void on_core_exit();
  void on_rank_exit(std::uint32_t rank);
  bool may_restart();
  void give_up(int code, const std::string& why);
  void shut_down();

  ServeSettings settings_;
  std::vector<std::string> arguments_;
  std::vector<std::string> engine_arguments_;
  Certificates certificates_;
  Descriptor signals_;
  std::optional<ChildProcess> core_;
  struct Rank {
    std::optional<ChildProcess> process;
    std::optional<Clock::time_point> loaded;  // since when it reads its line
    std::uint64_t joined = 0;                 // the newest epoch it has joined
  };
  std::vector<Rank> ranks_;
  std::optional<gpu::SharedSegment> segment_;
  std::uint64_t epoch_ = 0;
  Clock::time_point epoch_began_;
  std::uint64_t ready_epoch_ = 0;  // the newest that the core called complete
  std::chrono::milliseconds join_patience_{1000};
  std::string core_port_;  // "" while the core does not listen for ranks
  std::string endpoint_, metrics_;
  bool announced_ = false;
  bool draining_ = false;
  Clock::time_point drain_until_;
  std::deque<Clock::time_point> deaths_;
  std::optional<int> exit_code_;
};

}  // namespace althing::actors
