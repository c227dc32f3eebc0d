// See the header. Messages: `join EPOCH PORT` with the communicator's segment, and `stop`.
#include "actors/rank_process.hpp"

#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/openssl/remote_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <cstdio>
#include <functional>
#include <thread>
#include <utility>

#include "actors/actor_system.hpp"
#include "actors/certificates.hpp"
#include "actors/child_process.hpp"
#include "actors/engine_setup.hpp"
#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"
#include "actors/rank_actor.hpp"
#include "gpu/comm/shared_memory_communicator.hpp"

namespace althing::actors {
namespace {

// A peer that is this late is frozen or gone; the step's deadline and the supervisor's abort come first as a rule.
constexpr std::chrono::seconds collective_wait_max{8};

// The way to the core. It is made once for each core: connecting a second time to a node that is connected already makes CAF drop one of the two, and
// with it every handle.
class CoreLink {
 public:
  explicit CoreLink(caf::actor_system& system) : system_(system), self_(system) {}

  // The core listens before the supervisor says `join`, so a few tries are enough; more would only hide a dead core.
  Result<caf::actor> scheduler(std::uint16_t port) {
    note_downs();
    if (scheduler_ && port == port_) return scheduler_;
    std::string reason;
    for (int attempt = 0; attempt < 5; ++attempt) {
      auto actor = caf::openssl::remote_actor(system_, "127.0.0.1", port);
      if (actor) {
        self_->monitor(*actor);
        port_ = port;
        return scheduler_ = *actor;
      }
      reason = system_.render(actor.error());
      std::this_thread::sleep_for(std::chrono::milliseconds(20 << attempt));
    }
    return Error{ErrorCode::unavailable, "cannot reach the core on port " + std::to_string(port) + ": " + reason, ""};
  }

 private:
  void note_downs() {
    bool more = true;
    while (more)
      self_->receive(
          [&](const caf::down_msg& down) {
            if (scheduler_ && scheduler_ == down.source) scheduler_ = nullptr;
          },
          caf::after(std::chrono::milliseconds(0)) >> [&] { more = false; });
  }

  caf::actor_system& system_;
  caf::scoped_actor self_;
  caf::actor scheduler_;
  std::uint16_t port_ = 0;
};

Status join_epoch(CoreLink& core, const caf::actor& rank_actor, RankId rank, ControlMessage message) {
  if (message.words.size() < 3 || !message.descriptor) return Error{ErrorCode::internal, "a join message without its parts", ""};
  auto segment = gpu::SharedSegment::adopt(message.descriptor.release());
  if (!segment) return segment.error();
  auto scheduler = core.scheduler(static_cast<std::uint16_t>(std::stoul(message.words[2])));
  if (!scheduler) return scheduler.error();
  std::shared_ptr<gpu::Communicator> communicator = segment->join(rank, collective_wait_max);
  caf::anon_send(rank_actor, JoinEpoch{std::move(communicator), *scheduler});
  return Ok{};
}

}  // namespace

int run_rank_process(const ServeSettings& settings) {
  ControlChannel control{Descriptor(control_descriptor)};
  const auto fail = [&](const Error& error) {
    control.send("failed " + std::to_string(exit_code_of(error.code)) + " " + error.message);
    return exit_code_of(error.code);
  };
  auto setup = set_up_engine(settings);
  if (!setup) return fail(setup.error());
  if (settings.child_rank >= setup->placements.size()) return fail({ErrorCode::internal, "this rank is not part of the grid", ""});
  auto executor = gpu::Executor::create(setup->model, setup->executor_config(settings.child_rank, settings.threads));
  if (!executor) return fail(executor.error());
  if (settings.child_rank == 0 && !settings.log.json && settings.log.level != "error" && settings.log.level != "off")
    std::fputs(memory_table(*setup, (*executor)->memory()).c_str(), stderr);

  ClusterSystemConfig config({path_of(ca_descriptor), path_of(certificate_descriptor), path_of(key_descriptor)});
  caf::actor_system system{config};
  // Without unwinding: what the device's driver would do then is not known any more.
  const std::function<void()> on_lost = [] { ::_exit(exit_failed); };
  const caf::actor rank = system.spawn<caf::detached>(rank_actor, std::shared_ptr<gpu::Executor>(std::move(*executor)), on_lost);
  CoreLink core(system);
  control.send("loaded");
  while (true) {
    auto message = control.receive(std::chrono::milliseconds(1000));
    // Exits without unwinding: a step may be running on the actor's thread, and nothing here needs saving.
    if (control.closed()) ::_exit(exit_failed);
    if (!message) continue;
    if (message->words[0] == "stop") ::_exit(exit_ok);
    if (message->words[0] != "join") continue;
    const std::string epoch = message->words.size() > 1 ? message->words[1] : "?";
    const auto status = join_epoch(core, rank, RankId{settings.child_rank}, std::move(*message));
    if (!status) log(LogLevel::warning, "join_failed", {{"epoch", epoch}, {"reason", status.error().message}});
    // A failed join is tried again when the supervisor has thought about it: the core may be gone, and its restart brings the next epoch.
    control.send((status ? "joined " : "unjoined ") + epoch);
  }
}

}  // namespace althing::actors
