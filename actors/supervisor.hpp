// The supervisor: no model weights in use, no sockets to clients. It starts one core process and one process a rank, owns the communicator's segment
// of each epoch, and is the only one who decides membership; what the next membership is, membership.hpp says. A rank's death ends its epoch: the
// segment is aborted, the core told, the process started again, and a new epoch announced with the layout that can serve soonest: with a spare,
// without the rank, or when it is back. A spare's death ends nothing. The core's death does the same with the ranks kept; the next core finds the
// streams in the token log, whose memory is the supervisor's. Deaths that are too many to serve on end the server with a distinct code. Its own death
// ends every child (kernel and control line).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "actors/certificates.hpp"
#include "actors/child_process.hpp"
#include "actors/engine_setup.hpp"
#include "actors/fault_control.hpp"
#include "actors/membership.hpp"
#include "actors/rank_stamps.hpp"
#include "actors/rank_watch.hpp"
#include "actors/recovery_log.hpp"
#include "actors/settings.hpp"
#include "gpu/comm/shared_memory_communicator.hpp"
#include "gpu/mirror_memory.hpp"
#include "monitoring/event_ring.hpp"

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
  Status start_member(std::uint32_t member);
  // last_descriptors: the core's token log, or every place's KV mirror, as child_process.hpp says.
  Result<ChildProcess> start_child(std::vector<std::string> role, const StampPage& page, const std::vector<int>& last_descriptors);
  void wait_for_events();
  std::optional<ChildProcess>& child_of(int owner);
  void on_message(int owner, const ControlMessage& message);
  void on_exit(int owner);
  Status set_up_keys();
  void on_signal();
  void on_core_message(const ControlMessage& message);
  void on_member_message(std::uint32_t member, const ControlMessage& message);
  void on_failed(const std::string& who, const ControlMessage& message);
  void on_stuck(std::uint64_t epoch, const std::string& ranks, const std::string& why);
  void on_core_exit();
  // supervisor_membership.cpp
  void set_up_membership(const EngineSetup& setup);
  void new_epoch();
  void announce_epoch(const Membership::Next& next);
  void on_epoch_ready(std::uint64_t epoch);
  void on_member_exit(std::uint32_t member);
  void restart_released();
  void grow();
  void watch_joining();
  void tell_members();
  std::string name_of_member(std::uint32_t member) const;
  // supervisor_faults.cpp
  void watch_ranks();
  void watch_core();
  void condemn(std::uint32_t member, const std::string& cause, const std::string& how, Clock::time_point last_sign);
  void stalled(const std::string& how, Clock::time_point last_sign);
  Clock::time_point last_sign_of(std::uint32_t member) const;
  void tell_recovery(const ControlMessage& message);
  std::optional<std::string> order(const FaultOrder& order, std::uint64_t id);
  std::string status_of(std::uint32_t rank) const;
  void answer_order(const ControlMessage& message);
  // supervisor_events.cpp
  void note(monitoring::ServerEvent event);  // epoch 0: the newest
  void note_recovery(const RecoveryLog::Fault& fault, std::uint64_t streams);
  void tell_events();
  bool may_restart_core();
  // supervisor_gateway.cpp
  Status start_gateway();
  void on_gateway_message(const ControlMessage& message);
  void on_gateway_exit();
  void restart_gateway();
  void announce_once();
  void tell_manager(const std::string& text);  // the service manager, if one has started us
  void give_up(int code, const std::string& why);
  void shut_down();

  ServeSettings settings_;
  std::vector<std::string> arguments_;
  std::vector<std::string> engine_arguments_;
  Certificates certificates_;
  Descriptor signals_;
  Descriptor door_keys_;                    // where clients need keys: the server's, and those of its own clients
  Descriptor gateway_keys_;                 // likewise: what a client inside of this server needs
  Descriptor token_log_;                    // what cores leave to the next one; none when it is off
  std::vector<gpu::MirrorMemory> mirrors_;  // by place in the grid; empty where there is none
  std::uint64_t core_deaths_ = 0;
  std::optional<ChildProcess> core_;
  std::optional<StampPage> core_page_;
  std::optional<std::string> core_verdict_;  // why it was killed by us; its end is on its way
  struct Member {
    std::optional<ChildProcess> process;
    std::optional<Clock::time_point> loaded;  // since when it reads its line, and is what it was told to be
    std::uint64_t joined = 0;                 // the newest epoch it has joined
    std::optional<StampPage> page;            // what it shows of itself
    bool condemned = false;                   // killed by us; its end is on its way
  };
  std::vector<Member> members_;
  std::optional<Membership> membership_;
  bool epoch_due_ = false;  // somebody who was part of it is gone
  std::string members_told_;
  std::optional<gpu::SharedSegment> segment_;
  std::uint64_t epoch_ = 0;
  Clock::time_point epoch_began_;
  std::uint64_t ready_epoch_ = 0;  // the newest that the core called complete
  std::chrono::milliseconds join_patience_{1000};
  std::string core_port_;  // "" while the core does not listen for ranks
  std::string endpoint_, metrics_;
  std::optional<ChildProcess> gateway_;  // over HTTP; only with --http
  std::string http_, http_metrics_;      // where it listens; "" before it does
  std::deque<Clock::time_point> gateway_deaths_;
  std::optional<Clock::time_point> gateway_due_;  // it died too often and is left alone until then
  bool gateway_idle_ = false;                     // it drains, and nothing is open there any more
  bool core_ready_ = false;                       // once
  bool announced_ = false;
  bool draining_ = false;
  bool drained_ = false;  // nothing is computed any more
  Clock::time_point stay_until_;
  Clock::time_point drain_until_;
  std::deque<Clock::time_point> deaths_;  // of cores
  std::uint32_t deaths_since_ready_ = 0;  // likewise
  bool degraded_ = false;                 // the newest membership that served has fewer ranks than were asked for
  std::optional<RankWatch> watch_, core_watch_;
  RecoveryLog recovery_;
  monitoring::EventRing events_;
  std::uint64_t events_told_ = 0;  // the newest that this core has been sent
  struct Stall {
    std::uint64_t epoch = 0;
    std::string how;
    Clock::time_point since;
  };
  std::optional<Stall> stall_;          // the core can make no progress, and blames nobody
  std::optional<FaultControl> faults_;  // only with --allow-faults
  std::optional<int> exit_code_;
};

}  // namespace althing::actors
