// The core process: see the header. Its main thread only listens to the supervisor; the end of that line ends the process at once.
#include "actors/core_process.hpp"
#include "actors/descriptor_reserve.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <caf/openssl/publish.hpp>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "actors/certificates.hpp"
#include "actors/child_process.hpp"
#include "actors/complain.hpp"
#include "actors/core_actors.hpp"
#include "actors/core_pulse.hpp"
#include "actors/exit_codes.hpp"
#include "actors/fault_order.hpp"
#include "actors/in_process_ranks.hpp"
#include "actors/logging.hpp"
#include "actors/memory_budget.hpp"
#include "actors/ready_file.hpp"

namespace althing::actors {
namespace {

int report_and_fail(const ControlChannel& control, const Error& error) {
  control.send("failed " + std::to_string(exit_code_of(error.code)) + " " + error.message);
  return exit_code_of(error.code);
}

std::string joined(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (const std::uint32_t rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text.empty() ? "-" : text;
}

// The streams that a dead core left, if the supervisor keeps a log of them.
Result<TokenLog::TakenOver> take_over(const ServeSettings& settings) {
  TokenLog::TakenOver taken;
  taken.instance = random_instance();
  if (settings.token_log_mib == 0) return taken;
  auto found = TokenLog::take_over(Descriptor(token_log_descriptor), taken.instance);
  if (found && found->damaged > 0) log(LogLevel::error, "token_log_damaged", {{"places", found->damaged}});
  return found;
}

// What the supervisor has read and made, where clients need keys.
Status take_keys(const ServeSettings& settings, CoreActors::Past& past) {
  if (settings.curve_key.empty()) return Ok{};
  auto keys = unseal(Descriptor(door_keys_descriptor(settings.token_log_mib > 0)));
  if (!keys) return keys.error();
  past.keys = std::move(*keys);
  return Ok{};
}

// The core's own death or sleep on order, some steps from now. Exists only where faults are allowed.
class CoreFaults {
 public:
  void arm(const FaultOrder& order) {
    kind_ = order.kind;
    left_ = static_cast<std::int64_t>(order.after);
  }
  void step() {
    if (left_ < 0 || left_-- > 0) return;
    log(LogLevel::warning, "fault_injected", {{"fault", std::string(name_of(kind_.load())) + " core"}});
    ::kill(::getpid(), kind_ == FaultKind::stop ? SIGSTOP : SIGKILL);
  }

 private:
  std::atomic<FaultKind> kind_{FaultKind::kill};
  std::atomic<std::int64_t> left_{-1};
};

// "inject ID" and the order's words.
void take_fault(const ControlChannel& control, CoreFaults* faults, const ControlMessage& message) {
  const auto order = fault_order_of({message.words.begin() + 2, message.words.end()});
  const std::string why = faults == nullptr ? "this core was started without --allow-faults" : order ? "" : order.error().message;
  if (why.empty()) faults->arm(*order);
  control.send((why.empty() ? "armed " : "unarmed ") + message.words[1] + " " + why);
}

// "fault CAUSE RECOVERED_BY" and the seconds of each phase, with commas between.
void count_fault(monitoring::Metrics& metrics, const ControlMessage& message) {
  std::vector<double> seconds;
  std::istringstream list(message.words[3]);
  for (std::string item; std::getline(list, item, ',');) seconds.push_back(std::strtod(item.c_str(), nullptr));
  metrics.fault(message.words[1], message.words[2], seconds);
}

// "members SPARES QUARANTINED DEGRADED".
void note_members(monitoring::Metrics& metrics, const ControlMessage& message) {
  const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(std::strtoul(message.words[i].c_str(), nullptr, 10)); };
  metrics.membership(number(1), number(2), number(3) != 0);
}

// What the supervisor says, until it says stop or is gone.
int obey(ControlChannel& control, CoreActors& core, CoreFaults* faults) {
  while (true) {
    const auto message = control.receive(std::chrono::milliseconds(1000));
    if (control.closed()) ::_exit(exit_failed);
    if (!message) continue;
    const auto& words = message->words;
    if (words[0] == "stop") return exit_ok;
    if (words[0] == "inject" && words.size() >= 3) take_fault(control, faults, *message);
    if (words[0] == "fault" && words.size() >= 4) count_fault(core.metrics(), *message);
    if (words[0] == "members" && words.size() >= 4) note_members(core.metrics(), *message);
    if (words[0] == "events") core.events().take(message->text_from(1));
    if (words[0] == "reload") core.reload_keys();
    if (words[0] == "drain") caf::anon_send(core.scheduler(), drain_atom_v);
    if (words[0] == "grows" && words.size() >= 2) caf::anon_send(core.scheduler(), MembershipGrows{std::stoull(words[1])});
    if (words[0] == "lost" && words.size() >= 4)
      caf::anon_send(core.scheduler(), MembershipLost{std::stoull(words[1]), static_cast<std::uint32_t>(std::stoul(words[2])), words[3]});
  }
}

}  // namespace

int run_core_process(const ServeSettings& settings) {
  raise_descriptor_limit();
  CoreActors::Past past;
  past.started_ns = monotonic_ns();
  ControlChannel control{Descriptor(control_descriptor)};
  auto page = StampPage::adopt(Descriptor(stamps_descriptor));
  if (!page) return report_and_fail(control, page.error());
  const Heart heart(page->stamps());
  auto setup = set_up_engine(settings);
  if (!setup) return report_and_fail(control, setup.error());
  ClusterSystemConfig config({path_of(ca_descriptor), path_of(certificate_descriptor), path_of(key_descriptor)});
  caf::actor_system system{config};
  CoreActors::Hooks hooks;
  hooks.report_failure = [&control](std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string& cause) {
    control.send("stuck " + std::to_string(epoch) + " " + joined(ranks) + " " + cause);
  };
  hooks.on_ready = [&control](std::uint64_t epoch) { control.send("ready " + std::to_string(epoch)); };
  hooks.on_drained = [&control] { control.send("drained"); };
  hooks.on_resumed = [&control](std::uint64_t epoch, const ResumeWatch::Resumed& resumed) {
    control.send("resumed " + std::to_string(epoch) + " " + std::to_string(resumed.first_token.count()) + " " +
                 std::to_string(resumed.last_token.count()) + " " + std::to_string(resumed.streams) + " " + std::to_string(resumed.tokens_restored) +
                 " " + std::to_string(resumed.tokens_recomputed));
  };
  hooks.on_core_recovered = [&control](double seconds, const CoreRecovery::Found& found) {
    control.send("core_recovered " + std::to_string(seconds) + " " + std::to_string(found.open));
  };
  const auto faults = settings.allow_faults ? std::make_unique<CoreFaults>() : nullptr;
  if (faults) hooks.on_step = [&faults = *faults] { faults.step(); };
  hooks.pulse = std::make_shared<CorePulse>(page->stamps());
  auto taken = take_over(settings);
  if (!taken) return report_and_fail(control, taken.error());
  past.taken = std::move(*taken);
  if (auto status = take_keys(settings, past); !status) return report_and_fail(control, status.error());
  auto core = CoreActors::start(system, settings, *setup, std::move(hooks), std::move(past));
  if (!core) return report_and_fail(control, core.error());
  const auto port = caf::openssl::publish((*core)->scheduler(), 0, "127.0.0.1", true);
  if (!port) return report_and_fail(control, Error{ErrorCode::io, "cannot listen for ranks: " + system.render(port.error()), ""});
  const std::string metrics = (*core)->metrics_address().empty() ? "-" : (*core)->metrics_address();
  control.send("serving " + (*core)->endpoint() + " " + metrics);
  control.send("published " + std::to_string(*port));
  const int code = obey(control, **core, faults.get());
  core->reset();
  // CAF's middleman may wait for peers that are going down too; everything of ours has ended in order already.
  ::_exit(code);
}

int run_in_process(const ServeSettings& settings) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM}) ::sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto setup = set_up_engine(settings);
  if (!setup) return complain(setup.error());
  // Without a supervisor there is no token log.
  if (auto status = check_memory_here(*setup, 0, RanksLive::in_one_process); !status) return complain(status.error());
  log_device(*setup);
  LocalSystemConfig config;
  caf::actor_system system{config};
  std::string endpoint, metrics;
  CoreActors::Hooks hooks;
  CoreActors::Past past;
  past.taken.instance = random_instance();
  if (!settings.curve_key.empty()) {
    auto keys = make_door_keys(settings);
    if (!keys) return complain(keys.error());
    past.keys = std::move(*keys);
  }
  auto core = CoreActors::start(system, settings, *setup, std::move(hooks), std::move(past));
  if (!core) return complain(core.error());
  auto ranks = InProcessRanks::start(system, *setup, settings.threads, (*core)->scheduler());
  if (!ranks) return complain(ranks.error());
  std::fputs(memory_table(*setup, (*ranks)->memory()).c_str(), stderr);
  if (auto status = announce(settings, {(*core)->endpoint(), (*core)->metrics_address(), "", "", ""}); !status) return complain(status.error());
  int number = 0;
  ::sigwait(&signals, &number);
  // The core first: to it, ranks that end before it look like ranks that died.
  core->reset();
  ranks->reset();
  return exit_ok;
}

}  // namespace althing::actors
