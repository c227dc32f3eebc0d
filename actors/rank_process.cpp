// See the header. Messages: `join EPOCH PORT RANK GRID` with the communicator's segment, `stop`, and with --allow-faults `inject`. What the rank
// holds is of the place that it was told last: another place in an epoch means another executor, and the old one goes first, because both may not
// fit.
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
#include "actors/epoch_layout.hpp"
#include "actors/exit_codes.hpp"
#include "actors/kv_mirror.hpp"
#include "actors/logging.hpp"
#include "actors/rank_actor.hpp"
#include "actors/rank_stamps.hpp"
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

// The process as a member: which place its executor is of, and how it comes to another.
class Member {
 public:
  Member(const ServeSettings& settings, const EngineSetup& setup, const ControlChannel& control)
      : settings_(settings), setup_(setup), control_(control) {}

  Result<std::shared_ptr<gpu::Executor>> make(const Place& place) {
    const auto setup = with_grid(setup_, place.grid);
    if (!setup) return setup.error();
    // Each process has the mirrors of all places: it may be given any. Who is starting maps its own and leaves it alone until an epoch gives it the
    // place, because in a smaller grid the place is another member's.
    auto mirror = adopt_mirror(setup->kv_mirror_mib > 0 ? ::dup(kv_mirror_descriptors + static_cast<int>(place.rank)) : -1, *setup, place.rank);
    if (!mirror) return mirror.error();
    auto executor =
        gpu::Executor::create(setup->model, setup->executor_config(place.rank, settings_.threads, settings_.child_rank, std::move(*mirror)));
    if (!executor) return executor.error();
    built_ = place;
    return std::shared_ptr<gpu::Executor>(std::move(*executor));
  }

  // "join EPOCH PORT RANK GRID". An error of `make` is fatal: nothing is held any more.
  Status join(CoreLink& core, caf::scoped_actor& self, const caf::actor& rank_actor, ControlMessage message, std::optional<Error>& fatal) {
    if (message.words.size() < 5 || !message.descriptor) return Error{ErrorCode::internal, "a join message without its parts", ""};
    auto place = place_of_text(message.words[3] + "@" + message.words[4]);
    if (!place) return place.error();
    auto segment = gpu::SharedSegment::adopt(message.descriptor.release());
    if (!segment) return segment.error();
    std::shared_ptr<gpu::Executor> executor = std::move(made_);
    if (built_ != *place) {
      executor.reset();
      control_.send("building " + message.words[1]);
      if (auto status = rebuild(self, rank_actor, *place, executor); !status) {
        fatal = status.error();
        return *fatal;
      }
      control_.send("loaded");
    }
    auto scheduler = core.scheduler(static_cast<std::uint16_t>(std::stoul(message.words[2])));
    if (!scheduler) {
      made_ = std::move(executor);
      return scheduler.error();
    }
    std::shared_ptr<gpu::Communicator> communicator = segment->join(RankId{place->rank}, collective_wait_max);
    caf::anon_send(rank_actor, JoinEpoch{std::move(communicator), *scheduler, std::move(place->grid), std::move(executor)});
    return Ok{};
  }

 private:
  Status rebuild(caf::scoped_actor& self, const caf::actor& rank_actor, const Place& place, std::shared_ptr<gpu::Executor>& executor) {
    built_.reset();
    self->request(rank_actor, caf::infinite, DropExecutor{}).receive([] {}, [](const caf::error&) {});
    auto made = make(place);
    if (!made) return made.error();
    executor = std::move(*made);
    log(LogLevel::info, "rank_built", {{"rank", place.rank}, {"grid", to_text(place.grid)}});
    return Ok{};
  }

  const ServeSettings& settings_;
  const EngineSetup& setup_;
  const ControlChannel& control_;
  std::optional<Place> built_;
  std::shared_ptr<gpu::Executor> made_;  // of built_, where the actor has not got it yet: the core could not be reached
};

// "inject ID" and the order's words.
void take_fault(const ControlChannel& control, RankFaults* faults, const ControlMessage& message) {
  if (message.words.size() < 3) return;
  const auto order = fault_order_of({message.words.begin() + 2, message.words.end()});
  if (faults != nullptr && order) faults->arm(*order);
  const std::string why = faults == nullptr ? "this rank was started without --allow-faults" : order ? "" : order.error().message;
  control.send((why.empty() ? "armed " : "unarmed ") + message.words[1] + " " + why);
}

}  // namespace

int run_rank_process(const ServeSettings& settings) {
  ControlChannel control{Descriptor(control_descriptor)};
  const auto fail = [&](const Error& error) {
    control.send("failed " + std::to_string(exit_code_of(error.code)) + " " + error.message);
    return exit_code_of(error.code);
  };
  auto page = StampPage::adopt(Descriptor(stamps_descriptor));
  if (!page) return fail(page.error());
  const Heart heart(page->stamps());
  auto setup = set_up_engine(settings);
  if (!setup) return fail(setup.error());
  Member member(settings, *setup, control);
  std::shared_ptr<gpu::Executor> executor;
  if (!settings.child_place.empty()) {
    const auto place = place_of_text(settings.child_place);
    if (!place) return fail(place.error());
    auto made = member.make(*place);
    if (!made) return fail(made.error());
    executor = std::move(*made);
    if (place->rank == 0 && !settings.log.json && settings.log.level != "error" && settings.log.level != "off")
      std::fputs(memory_table(*setup, executor->memory()).c_str(), stderr);
  }

  ClusterSystemConfig config({path_of(ca_descriptor), path_of(certificate_descriptor), path_of(key_descriptor)});
  caf::actor_system system{config};
  // Without unwinding: what the device's driver would do then is not known any more.
  RankHooks hooks{[] { ::_exit(exit_failed); }, page->stamps(), settings.allow_faults ? std::make_shared<RankFaults>(page->stamps()) : nullptr};
  const caf::actor rank = system.spawn<caf::detached>(rank_actor, std::move(executor), hooks);
  caf::scoped_actor self(system);
  CoreLink core(system);
  control.send("loaded");
  while (true) {
    auto message = control.receive(std::chrono::milliseconds(1000));
    // Exits without unwinding: a step may be running on the actor's thread, and nothing here needs saving.
    if (control.closed()) ::_exit(exit_failed);
    std::optional<ControlMessage> newest;
    // Of several epochs that were announced while this rank was busy only the last can still come about.
    for (; message; message = control.receive(std::chrono::milliseconds(0))) {
      if (message->words[0] == "stop") ::_exit(exit_ok);
      if (message->words[0] == "inject") take_fault(control, hooks.faults.get(), *message);
      if (message->words[0] == "join") newest = std::move(message);
    }
    if (!newest) continue;
    const std::string epoch = newest->words.size() > 1 ? newest->words[1] : "?";
    std::optional<Error> fatal;
    const auto status = member.join(core, self, rank, std::move(*newest), fatal);
    if (!status) log(LogLevel::warning, "join_failed", {{"epoch", epoch}, {"reason", status.error().message}});
    if (fatal) {
      fail(*fatal);
      ::_exit(exit_code_of(fatal->code));
    }
    // A failed join is tried again when the supervisor has thought about it: the core may be gone, and its restart brings the next epoch.
    control.send((status ? "joined " : "unjoined ") + epoch);
  }
}

}  // namespace althing::actors
