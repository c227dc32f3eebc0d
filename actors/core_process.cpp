// The core process: see the header. Its main thread only listens to the supervisor; the end of that line ends the process at once.
#include "actors/core_process.hpp"

#include <signal.h>
#include <unistd.h>

#include <caf/openssl/publish.hpp>
#include <cstdio>
#include <utility>

#include "actors/certificates.hpp"
#include "actors/child_process.hpp"
#include "actors/complain.hpp"
#include "actors/core_actors.hpp"
#include "actors/exit_codes.hpp"
#include "actors/in_process_ranks.hpp"
#include "actors/logging.hpp"
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

// What the supervisor says, until it says stop or is gone.
int obey(ControlChannel& control, const CoreActors& core) {
  while (true) {
    const auto message = control.receive(std::chrono::milliseconds(1000));
    if (control.closed()) ::_exit(exit_failed);
    if (!message) continue;
    const auto& words = message->words;
    if (words[0] == "stop") return exit_ok;
    if (words[0] == "drain") caf::anon_send(core.scheduler(), drain_atom_v);
    if (words[0] == "lost" && words.size() >= 4)
      caf::anon_send(core.scheduler(), MembershipLost{std::stoull(words[1]), static_cast<std::uint32_t>(std::stoul(words[2])), words[3]});
  }
}

}  // namespace

int run_core_process(const ServeSettings& settings) {
  ControlChannel control{Descriptor(control_descriptor)};
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
  auto core = CoreActors::start(system, settings, *setup, std::move(hooks));
  if (!core) return report_and_fail(control, core.error());
  const auto port = caf::openssl::publish((*core)->scheduler(), 0, "127.0.0.1", true);
  if (!port) return report_and_fail(control, Error{ErrorCode::io, "cannot listen for ranks: " + system.render(port.error()), ""});
  const std::string metrics = (*core)->metrics_address().empty() ? "-" : (*core)->metrics_address();
  control.send("serving " + (*core)->endpoint() + " " + metrics);
  control.send("published " + std::to_string(*port));
  const int code = obey(control, **core);
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
  log_device(*setup);
  LocalSystemConfig config;
  caf::actor_system system{config};
  std::string endpoint, metrics;
  CoreActors::Hooks hooks;
  auto core = CoreActors::start(system, settings, *setup, std::move(hooks));
  if (!core) return complain(core.error());
  auto ranks = InProcessRanks::start(system, *setup, settings.threads, (*core)->scheduler());
  if (!ranks) return complain(ranks.error());
  std::fputs(memory_table(*setup, (*ranks)->memory()).c_str(), stderr);
  if (auto status = announce(settings, (*core)->endpoint(), (*core)->metrics_address()); !status) return complain(status.error());
  int number = 0;
  ::sigwait(&signals, &number);
  // The core first: to it, ranks that end before it look like ranks that died.
  core->reset();
  ranks->reset();
  return exit_ok;
}

}  // namespace althing::actors
