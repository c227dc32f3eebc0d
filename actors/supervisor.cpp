// The supervisor's loop: see the header. One thread, one poll over a signalfd, pidfds and control lines.
#include "actors/supervisor.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <utility>

#include "actors/complain.hpp"
#include "actors/core_actors.hpp"
#include "actors/core_recovery.hpp"
#include "actors/door_keys.hpp"
#include "actors/epoch_layout.hpp"
#include "actors/exit_codes.hpp"
#include "actors/kv_mirror.hpp"
#include "actors/memory_budget.hpp"
#include "actors/ready_file.hpp"
#include "actors/serving_addresses.hpp"
#include "actors/token_log.hpp"

namespace althing::actors {
namespace {

// From the second signal on; all is over in under 2 s.
constexpr std::chrono::milliseconds core_stops_within{1200};
constexpr std::chrono::milliseconds gateway_stops_within{1400};  // it says what the core has said, so a core that is quick leaves it the time
constexpr std::chrono::milliseconds ranks_stop_within{1900};
constexpr std::chrono::seconds storm_window{60};
constexpr std::chrono::seconds client_return{5};  // after a core's death; as long as the gateway keeps streams of clients that vanished
constexpr int watch_interval_ms = 20;
constexpr int owner_signals = -2, owner_core = -1, owner_gateway = -3;
constexpr std::chrono::milliseconds core_patience{1000};  // its scheduler and its gateway go round ten times in it, at least

Result<Descriptor> signal_descriptor() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  Descriptor fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Error{ErrorCode::io, std::string("cannot watch signals: ") + std::strerror(errno), ""};
  return fd;
}

bool readable_within(int descriptor, std::chrono::milliseconds wait) {
  pollfd item{descriptor, POLLIN, 0};
  return ::poll(&item, 1, static_cast<int>(wait.count())) > 0;
}

}  // namespace

Supervisor::Supervisor(ServeSettings settings, std::vector<std::string> arguments)
    : settings_(std::move(settings)), arguments_(std::move(arguments)) {}

int Supervisor::run() {
  // A wrong model or flag is said here, once, and not by every child.
  // A ready file of an earlier run would send scripts to a server that is not there.
  if (!settings_.ready_file.empty()) ::unlink(settings_.ready_file.c_str());
  auto addresses = serving_addresses(settings_.bind, settings_.metrics, !settings_.curve_key.empty());
  if (!addresses) return complain(addresses.error());
  for (const ServingAddress& address : *addresses)
    if (auto status = check_free(address); !status) return complain(status.error());
  // Before anything that may start threads, as asking a driver for its GPUs does: they must not take our signals.
  auto signals = signal_descriptor();
  if (!signals) return complain(signals.error());
  signals_ = std::move(*signals);
  auto setup = set_up_engine(settings_);
  if (!setup) return complain(setup.error());
  if (auto format = chat_format(settings_); !format) return complain(format.error());
  if (auto status = check_memory_here(*setup, settings_.token_log_mib, RanksLive::in_processes_of_their_own); !status)
    return complain(status.error());
  log_device(*setup);
  // Children are told what was found out, so that all of them compute the same layout.
  engine_arguments_ = {"--device", std::string(gpu::name_of(setup->device)), "--kv-mib", std::to_string(setup->kv_mib)};
  auto certificates = make_certificates();
  if (!certificates) return complain(certificates.error());
  certificates_ = std::move(*certificates);
  if (auto status = set_up_keys(); !status) return complain(status.error());
  if (settings_.token_log_mib > 0) {
    auto log = TokenLog::create(std::size_t{settings_.token_log_mib} << 20, random_instance());
    if (!log) return complain(log.error());
    token_log_ = std::move(*log);
  }
  auto mirrors = make_mirrors(*setup);
  if (!mirrors) return complain(mirrors.error());
  mirrors_ = std::move(*mirrors);
  WatchLimits limits;
  limits.deadline = std::chrono::milliseconds(settings_.step_timeout_ms);
  limits.coarse = setup->device != gpu::Device::cpu;
  watch_.emplace(limits);
  core_watch_.emplace(WatchLimits{.floor = core_patience, .deadline = limits.deadline});
  if (settings_.allow_faults) {
    auto faults = FaultControl::listen(settings_.control);
    if (!faults) return complain(faults.error());
    faults_.emplace(std::move(*faults));
    log(LogLevel::warning, "faults_allowed", {{"control", faults_->path()}});
  }

  set_up_membership(*setup);
  setup->model.reset();
  if (auto status = start_core(); !status) return complain(status.error());
  for (std::uint32_t member = 0; member < members_.size(); ++member)
    if (auto status = start_member(member); !status) return complain(status.error());
  while (!exit_code_) wait_for_events();
  shut_down();
  return *exit_code_;
}

// Read once: a core that is started later is the same server, whatever has become of the file.
Status Supervisor::set_up_keys() {
  if (settings_.curve_key.empty()) return Ok{};
  auto keys = make_door_keys(settings_);
  if (!keys) return keys.error();
  auto sealed = seal(*keys);
  if (!sealed) return sealed.error();
  door_keys_ = std::move(*sealed);
  auto inside = seal_for_client(*keys);
  if (!inside) return inside.error();
  gateway_keys_ = std::move(*inside);
  return Ok{};
}

Result<ChildProcess> Supervisor::start_child(std::vector<std::string> role, const StampPage& page, const std::vector<int>& last_descriptors) {
  std::vector<std::string> arguments = arguments_;
  arguments.insert(arguments.end(), engine_arguments_.begin(), engine_arguments_.end());
  arguments.insert(arguments.end(), role.begin(), role.end());
  std::vector<int> inherited{certificates_.authority.get(), certificates_.certificate.get(), certificates_.key.get(), page.descriptor()};
  inherited.insert(inherited.end(), last_descriptors.begin(), last_descriptors.end());
  return ChildProcess::start(arguments, inherited);
}

Status Supervisor::start_core() {
  std::vector<std::string> role{"--child", "core"};
  // A restarted core must be found where the first one was.
  if (!endpoint_.empty()) role.insert(role.end(), {"--bind", endpoint_});
  if (!metrics_.empty()) role.insert(role.end(), {"--metrics", metrics_});
  auto page = StampPage::create();
  if (!page) return page.error();
  std::vector<int> inherited;
  for (const Descriptor* memory : {&token_log_, &door_keys_})
    if (*memory) inherited.push_back(memory->get());
  auto child = start_child(std::move(role), *page, inherited);
  if (!child) return child.error();
  core_ = std::move(*child);
  core_page_ = std::move(*page);
  core_verdict_.reset();
  log(LogLevel::info, "core_started", {{"pid", static_cast<long>(core_->pid())}});
  return Ok{};
}

Status Supervisor::start_member(std::uint32_t member) {
  auto page = StampPage::create();
  if (!page) return page.error();
  std::vector<std::string> role{"--child", "rank", "--child-rank", std::to_string(member)};
  if (const auto place = membership_->place_for(member)) role.insert(role.end(), {"--child-place", to_text(*place)});
  std::vector<int> mirrors;
  for (const gpu::MirrorMemory& mirror : mirrors_) mirrors.push_back(mirror.descriptor());
  auto child = start_child(std::move(role), *page, mirrors);
  if (!child) return child.error();
  members_[member] = Member{std::move(*child), std::nullopt, 0, std::move(*page), false};
  membership_->started(member);
  log(LogLevel::info, "rank_started", {{"who", name_of_member(member)}, {"pid", static_cast<long>(members_[member].process->pid())}});
  return Ok{};
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> items{{signals_.get(), POLLIN, 0}};
  std::vector<int> owners{owner_signals};  // or that of a child, or a member's number; control and pidfd of each
  const auto watch = [&](ChildProcess& child, int owner) {
    // A line at its end would be readable for ever; poll passes over negative numbers.
    for (const int fd : {child.control().closed() ? -1 : child.control().descriptor(), child.pidfd()}) {
      items.push_back({fd, POLLIN, 0});
      owners.push_back(owner);
    }
  };
  if (core_) watch(*core_, owner_core);
  if (gateway_) watch(*gateway_, owner_gateway);
  for (std::uint32_t member = 0; member < members_.size(); ++member)
    if (members_[member].process) watch(*members_[member].process, static_cast<int>(member));
  if (::poll(items.data(), items.size(), watch_interval_ms) < 0 && errno != EINTR) return give_up(exit_internal, "poll failed");

  if (items[0].revents != 0) on_signal();
  // Words first, then deaths: the last thing a child said explains its end.
  for (std::size_t i = 1; i + 1 < items.size(); i += 2) {
    if (items[i].revents == 0) continue;
    std::optional<ChildProcess>& child = child_of(owners[i]);
    while (child) {
      const auto message = child->control().receive(std::chrono::milliseconds(0));
      if (!message) break;
      on_message(owners[i], *message);
    }
  }
  for (std::size_t i = 1; i + 1 < items.size(); i += 2) {
    if (items[i + 1].revents != 0) on_exit(owners[i]);
  }
  // Once for all that died in this round: whoever is dead is in no layout that is announced.
  if (epoch_due_ && !exit_code_) new_epoch();
  watch_ranks();
  watch_core();
  watch_joining();
  restart_released();
  restart_gateway();
  grow();
  tell_members();
  if (faults_) faults_->serve([this](const FaultOrder& fault, std::uint64_t id) { return order(fault, id); });
  // Clients of a core that died meanwhile may not have come back yet for the ends of their streams.
  const auto now = Clock::now();
  if (draining_ && (now > drain_until_ || (drained_ && now > stay_until_ && (!gateway_ || gateway_idle_))) && !exit_code_) exit_code_ = exit_ok;
}

std::optional<ChildProcess>& Supervisor::child_of(int owner) {
  if (owner == owner_core) return core_;
  return owner == owner_gateway ? gateway_ : members_[static_cast<std::size_t>(owner)].process;
}

void Supervisor::on_message(int owner, const ControlMessage& message) {
  if (owner == owner_core) return on_core_message(message);
  if (owner == owner_gateway) return on_gateway_message(message);
  on_member_message(static_cast<std::uint32_t>(owner), message);
}

void Supervisor::on_exit(int owner) {
  if (owner == owner_core) return on_core_exit();
  if (owner == owner_gateway) return on_gateway_exit();
  on_member_exit(static_cast<std::uint32_t>(owner));
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  log(LogLevel::info, "signal", {{"number", info.ssi_signo}});
  // Where there is a list of keys, a hang-up asks to read it again, as it does of other daemons; else it ends the server.
  if (info.ssi_signo == SIGHUP && door_keys_) {
    if (core_) core_->control().send("reload");
    return;
  }
  if (draining_ || !core_ || !announced_) {
    exit_code_ = exit_ok;  // the second signal, or nothing to drain
    return;
  }
  draining_ = true;
  tell_manager("STOPPING=1\nSTATUS=draining: requests that run get " + std::to_string(settings_.drain_seconds) + " s");
  drain_until_ = Clock::now() + std::chrono::seconds(settings_.drain_seconds);
  core_->control().send("drain");
  if (gateway_) gateway_->control().send("drain");
}

void Supervisor::on_core_message(const ControlMessage& message) {
  const auto& words = message.words;
  if (words[0] == "failed") return on_failed("the core", message);
  if (words[0] == "serving" && words.size() >= 3) {
    endpoint_ = words[1];
    metrics_ = words[2] == "-" ? "" : words[2];
    // Once there is a server to connect to. It stays when the core does not.
    if (!settings_.http.empty() && !gateway_ && !gateway_due_)
      if (auto status = start_gateway(); !status) give_up(exit_code_of(status.error().code), status.error().message);
  } else if (words[0] == "published" && words.size() >= 2) {
    core_port_ = words[1];
    if (draining_) core_->control().send("drain");  // what the core before this one was told
    members_told_.clear();
    events_told_ = 0;
    tell_events();
    new_epoch();
  } else if (words[0] == "ready" && words.size() >= 2) {
    on_epoch_ready(std::stoull(words[1]));
    core_ready_ = true;
    announce_once();
  } else if (words[0] == "stuck" && words.size() >= 3) {
    std::string why;
    for (std::size_t i = 3; i < words.size(); ++i) why += (i == 3 ? "" : " ") + words[i];
    on_stuck(std::stoull(words[1]), words[2], why);
  } else if (words[0] == "resumed") {
    tell_recovery(message);
  } else if (words[0] == "armed" || words[0] == "unarmed") {
    answer_order(message);
  } else if (words[0] == "core_recovered" && words.size() >= 3) {
    monitoring::ServerEvent event{"core_recovered", std::nullopt, "", "", 0};
    event.total_seconds = std::stod(words[1]);
    event.streams = std::stoull(words[2]);
    note(std::move(event));
  } else if (words[0] == "drained") {
    drained_ = true;
  }
}

void Supervisor::on_member_message(std::uint32_t member, const ControlMessage& message) {
  Member& from = members_[member];
  const auto& words = message.words;
  if (words[0] == "failed") return on_failed(name_of_member(member), message);
  if (words[0] == "building") {
    from.loaded.reset();
    membership_->building(member);
  }
  if (words[0] == "loaded") {
    from.loaded = Clock::now();
    membership_->loaded(member);
    if (membership_->current().rank_of(member)) recovery_.loaded(*from.loaded);
  }
  if (words[0] == "armed" || words[0] == "unarmed") answer_order(message);
  if (words[0] == "joined" && words.size() >= 2) from.joined = std::stoull(words[1]);
  // The rank lives but could not reach the core. If the core is gone its restart announces the next epoch; if not, only a new try helps.
  if (words[0] == "unjoined" && words.size() >= 2 && words[1] == std::to_string(epoch_) && core_) new_epoch();
}

void Supervisor::on_failed(const std::string& who, const ControlMessage& message) {
  // "failed CODE sentence": the sentence was split into words again.
  std::string why;
  for (std::size_t i = 2; i < message.words.size(); ++i) why += (i == 2 ? "" : " ") + message.words[i];
  if (announced_) log(LogLevel::error, "child_failed", {{"who", who}, {"reason", why}});
  // Before the first ready there is nothing to keep alive, and trying again would fail again.
  if (!announced_) give_up(message.words.size() > 1 ? std::stoi(message.words[1]) : exit_internal, why);
}

void Supervisor::on_stuck(std::uint64_t epoch, const std::string& ranks, const std::string& why) {
  if (epoch != epoch_) return;
  // A connection ends a little before the process at its other end does. Only where nobody dies is it a fault of its own.
  if (ranks == "-") {
    if (!stall_) stall_ = Stall{epoch, why, Clock::now()};
    return;
  }
  // Their deaths, not this message, start the new epoch.
  const std::vector<std::uint32_t>& members = membership_->current().members;
  std::istringstream list(ranks);
  for (std::string item; std::getline(list, item, ',');)
    if (const auto rank = std::stoul(item); rank < members.size()) condemn(members[rank], "frozen", why, last_sign_of(members[rank]));
}

void Supervisor::on_core_exit() {
  const std::uint64_t noticed = monotonic_ns();
  const ChildExit exit = core_->reap();
  const std::string how = core_verdict_ ? *core_verdict_ + ", " + to_string(exit) : to_string(exit);
  core_.reset();
  core_port_.clear();
  if (exit_code_) return;
  log(LogLevel::error, "core_died", {{"how", how}, {"epoch", epoch_}});
  note({"core_died", std::nullopt, core_verdict_ ? "frozen" : "exit", how, epoch_});
  drained_ = false;
  stay_until_ = Clock::now() + client_return;
  if (token_log_) TokenLog::note_core_death(token_log_.get(), ++core_deaths_, noticed);
  if (draining_ && !token_log_) {
    exit_code_ = exit_failed;
    return;
  }
  if (segment_) segment_->abort();
  if (!may_restart_core()) return;
  if (auto status = start_core(); !status) give_up(exit_code_of(status.error().code), status.error().message);
}

// Two bounds: so many deaths a minute, and as many in a row without serving in between, however long each took. So nothing is started for ever that
// cannot live. (Ranks have theirs in membership.hpp.)
bool Supervisor::may_restart_core() {
  const auto now = Clock::now();
  deaths_.push_back(now);
  ++deaths_since_ready_;
  while (!deaths_.empty() && now - deaths_.front() > storm_window) deaths_.pop_front();
  const std::string limit =
      ", which is more than --restarts-max " + std::to_string(settings_.restarts_max) + ": see the log lines above for the causes";
  if (deaths_.size() > settings_.restarts_max) {
    give_up(exit_rank_lost, "the core died " + std::to_string(deaths_.size()) + " times within a minute" + limit);
  } else if (deaths_since_ready_ > settings_.restarts_max) {
    give_up(exit_rank_lost, "the core died " + std::to_string(deaths_since_ready_) + " times in a row without serving in between" + limit);
  }
  return !exit_code_;
}

void Supervisor::give_up(int code, const std::string& why) {
  if (exit_code_) return;
  std::fprintf(stderr, "althing: %s\n", why.c_str());
  exit_code_ = code;
}

void Supervisor::shut_down() {
  if (!draining_) tell_manager("STOPPING=1");
  const auto began = Clock::now();
  const auto ends_within = [began](const ChildProcess& child, std::chrono::milliseconds limit) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(began + limit - Clock::now());
    return readable_within(child.pidfd(), std::max(left, std::chrono::milliseconds(0)));
  };
  if (gateway_) gateway_->control().send("stop");
  if (core_) {
    core_->control().send("stop");
    if (!ends_within(*core_, core_stops_within)) core_->signal(SIGKILL);
    core_->reap();
    core_.reset();
  }
  if (gateway_) {
    if (!ends_within(*gateway_, gateway_stops_within)) gateway_->signal(SIGKILL);
    gateway_->reap();
    gateway_.reset();
  }
  if (segment_) segment_->abort();
  for (Member& member : members_)
    if (member.process) member.process->control().send("stop");
  for (Member& member : members_) {
    if (!member.process) continue;
    if (!ends_within(*member.process, ranks_stop_within)) member.process->signal(SIGKILL);
    member.process->reap();
    member.process.reset();
  }
  if (!settings_.ready_file.empty()) ::unlink(settings_.ready_file.c_str());
}

}  // namespace althing::actors
