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
#include "actors/engine_setup.hpp"
#include "actors/exit_codes.hpp"
#include "actors/ready_file.hpp"
#include "protocol/wire/router_socket.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::milliseconds core_stop_wait{2500};
constexpr std::chrono::milliseconds rank_stop_wait{500};
constexpr std::chrono::seconds storm_window{60};

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
  if (auto status = protocol::wire::RouterSocket::check(settings_.bind); !status) return complain(status.error());
  // Before anything that may start threads, as asking a driver for its GPUs does: they must not take our signals.
  auto signals = signal_descriptor();
  if (!signals) return complain(signals.error());
  signals_ = std::move(*signals);
  auto setup = set_up_engine(settings_);
  if (!setup) return complain(setup.error());
  if (auto format = chat_format(settings_); !format) return complain(format.error());
  log_device(*setup);
  // Children are told what was found out, so that all of them compute the same layout.
  engine_arguments_ = {"--device", std::string(gpu::name_of(setup->device)), "--kv-mib", std::to_string(setup->kv_mib)};
  auto certificates = make_certificates();
  if (!certificates) return complain(certificates.error());
  certificates_ = std::move(*certificates);

  ranks_.resize(settings_.ranks);
  if (auto status = start_core(); !status) return complain(status.error());
  for (std::uint32_t rank = 0; rank < settings_.ranks; ++rank)
    if (auto status = start_rank(rank); !status) return complain(status.error());
  while (!exit_code_) wait_for_events();
  shut_down();
  return *exit_code_;
}

Result<ChildProcess> Supervisor::start_child(std::vector<std::string> role) {
  std::vector<std::string> arguments = arguments_;
  arguments.insert(arguments.end(), engine_arguments_.begin(), engine_arguments_.end());
  arguments.insert(arguments.end(), role.begin(), role.end());
  return ChildProcess::start(arguments, {certificates_.authority.get(), certificates_.certificate.get(), certificates_.key.get()});
}

Status Supervisor::start_core() {
  std::vector<std::string> role{"--child", "core"};
  // A restarted core must be found where the first one was.
  if (!endpoint_.empty()) role.insert(role.end(), {"--bind", endpoint_});
  if (!metrics_.empty()) role.insert(role.end(), {"--metrics", metrics_});
  auto child = start_child(std::move(role));
  if (!child) return child.error();
  core_ = std::move(*child);
  log(LogLevel::info, "core_started", {{"pid", static_cast<long>(core_->pid())}});
  return Ok{};
}

Status Supervisor::start_rank(std::uint32_t rank) {
  auto child = start_child({"--child", "rank", "--child-rank", std::to_string(rank)});
  if (!child) return child.error();
  ranks_[rank] = Rank{std::move(*child), std::nullopt, 0};
  log(LogLevel::info, "rank_started", {{"rank", rank}, {"pid", static_cast<long>(ranks_[rank].process->pid())}});
  return Ok{};
}

// Everybody who is alive is told; a rank that still loads finds the message when it has loaded.
void Supervisor::new_epoch() {
  if (segment_) segment_->abort();
  if (core_port_.empty()) return;
  auto segment = gpu::SharedSegment::create(settings_.ranks, EpochId{++epoch_});
  if (!segment) return give_up(exit_code_of(segment.error().code), segment.error().message);
  segment_ = std::move(*segment);
  epoch_began_ = Clock::now();
  for (std::uint32_t rank = 0; rank < settings_.ranks; ++rank) {
    if (!ranks_[rank].process) continue;
    if (!ranks_[rank].process->control().send("join " + std::to_string(epoch_) + " " + core_port_, segment_->descriptor()))
      ranks_[rank].process->signal(SIGKILL);  // it does not read its line any more
  }
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> items{{signals_.get(), POLLIN, 0}};
  std::vector<int> owners{-2};  // -2 signals, -1 core, else a rank; control and pidfd of each
  const auto watch = [&](ChildProcess& child, int owner) {
    // A line at its end would be readable for ever; poll passes over negative numbers.
    for (const int fd : {child.control().closed() ? -1 : child.control().descriptor(), child.pidfd()}) {
      items.push_back({fd, POLLIN, 0});
      owners.push_back(owner);
    }
  };
  if (core_) watch(*core_, -1);
  for (std::uint32_t rank = 0; rank < settings_.ranks; ++rank)
    if (ranks_[rank].process) watch(*ranks_[rank].process, static_cast<int>(rank));
  if (::poll(items.data(), items.size(), 200) < 0 && errno != EINTR) return give_up(exit_internal, "poll failed");

  if (items[0].revents != 0) on_signal();
  // Words first, then deaths: the last thing a child said explains its end.
  for (std::size_t i = 1; i + 1 < items.size(); i += 2) {
    if (items[i].revents == 0) continue;
    std::optional<ChildProcess>& child = owners[i] == -1 ? core_ : ranks_[static_cast<std::size_t>(owners[i])].process;
    while (child) {
      const auto message = child->control().receive(std::chrono::milliseconds(0));
      if (!message) break;
      owners[i] == -1 ? on_core_message(*message) : on_rank_message(static_cast<std::uint32_t>(owners[i]), *message);
    }
  }
  for (std::size_t i = 1; i + 1 < items.size(); i += 2) {
    if (items[i + 1].revents == 0) continue;
    owners[i] == -1 ? on_core_exit() : on_rank_exit(static_cast<std::uint32_t>(owners[i]));
  }
  watch_joining();
  if (draining_ && Clock::now() > drain_until_ && !exit_code_) exit_code_ = exit_ok;
}

// An epoch that does not become complete is announced again, with more patience each time: a rank may have answered over a connection that was about
// to end. CAF's connect has no deadline that can be relied on, so a rank that reads its line and still does not join is started again.
void Supervisor::watch_joining() {
  if (core_port_.empty() || exit_code_ || ready_epoch_ == epoch_) return;
  Clock::time_point since = epoch_began_;
  for (const Rank& rank : ranks_) {
    if (!rank.process || !rank.loaded) return;
    since = std::max(since, *rank.loaded);
  }
  const bool somebody_missing = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.joined != epoch_; });
  // A rank may be in the middle of its TLS handshake on a machine that is busy; that is not yet a reason to kill it.
  if (Clock::now() - since < (somebody_missing ? 5 * join_patience_ : join_patience_)) return;
  join_patience_ = std::min(join_patience_ * 2, std::chrono::milliseconds(30'000));
  bool killed = false;
  for (std::uint32_t r = 0; r < settings_.ranks; ++r) {
    if (ranks_[r].joined == epoch_) continue;
    log(LogLevel::error, "rank_did_not_join", {{"rank", r}, {"epoch", epoch_}});
    ranks_[r].process->signal(SIGKILL);
    ranks_[r].loaded.reset();
    killed = true;
  }
  if (killed) return;  // its death announces the next epoch
  log(LogLevel::warning, "epoch_incomplete", {{"epoch", epoch_}});
  new_epoch();
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  log(LogLevel::info, "signal", {{"number", info.ssi_signo}});
  if (draining_ || !core_ || !announced_) {
    exit_code_ = exit_ok;  // the second signal, or nothing to drain
    return;
  }
  draining_ = true;
  drain_until_ = Clock::now() + std::chrono::seconds(settings_.drain_seconds);
  core_->control().send("drain");
}

void Supervisor::on_core_message(const ControlMessage& message) {
  const auto& words = message.words;
  if (words[0] == "failed") return on_failed("the core", message);
  if (words[0] == "serving" && words.size() >= 3) {
    endpoint_ = words[1];
    metrics_ = words[2] == "-" ? "" : words[2];
  } else if (words[0] == "published" && words.size() >= 2) {
    core_port_ = words[1];
    new_epoch();
  } else if (words[0] == "ready" && words.size() >= 2) {
    log(LogLevel::info, "ready", {{"epoch", words[1]}, {"endpoint", endpoint_}});
    ready_epoch_ = std::stoull(words[1]);
    join_patience_ = std::chrono::milliseconds(1000);
    if (announced_) return;
    announced_ = true;
    if (auto status = announce(settings_, endpoint_, metrics_); !status) give_up(exit_code_of(status.error().code), status.error().message);
  } else if (words[0] == "stuck" && words.size() >= 3) {
    on_stuck(std::stoull(words[1]), words[2]);
  } else if (words[0] == "drained") {
    exit_code_ = exit_ok;
  }
}

void Supervisor::on_rank_message(std::uint32_t rank, const ControlMessage& message) {
  if (message.words[0] == "failed") return on_failed("rank " + std::to_string(rank), message);
  if (message.words[0] == "loaded") ranks_[rank].loaded = Clock::now();
  if (message.words[0] == "joined" && message.words.size() >= 2) ranks_[rank].joined = std::stoull(message.words[1]);
  // The rank lives but could not reach the core. If the core is gone its restart announces the next epoch; if not, only a new try helps.
  if (message.words[0] == "unjoined" && message.words.size() >= 2 && message.words[1] == std::to_string(epoch_) && core_) new_epoch();
}

void Supervisor::on_failed(const std::string& who, const ControlMessage& message) {
  // "failed CODE sentence": the sentence was split into words again.
  std::string why;
  for (std::size_t i = 2; i < message.words.size(); ++i) why += (i == 2 ? "" : " ") + message.words[i];
  if (announced_) log(LogLevel::error, "child_failed", {{"who", who}, {"reason", why}});
  // Before the first ready there is nothing to keep alive, and trying again would fail again.
  if (!announced_) give_up(message.words.size() > 1 ? std::stoi(message.words[1]) : exit_internal, why);
}

void Supervisor::on_stuck(std::uint64_t epoch, const std::string& ranks) {
  if (epoch != epoch_) return;
  if (ranks == "-") return new_epoch();
  // Their deaths, not this message, start the new epoch.
  std::istringstream list(ranks);
  for (std::string item; std::getline(list, item, ',');) {
    const auto rank = static_cast<std::uint32_t>(std::stoul(item));
    if (rank >= ranks_.size() || !ranks_[rank].process) continue;
    log(LogLevel::error, "rank_frozen", {{"rank", rank}, {"epoch", epoch}});
    ranks_[rank].process->signal(SIGKILL);
  }
}

void Supervisor::on_core_exit() {
  const ChildExit exit = core_->reap();
  core_.reset();
  core_port_.clear();
  if (exit_code_) return;
  log(LogLevel::error, "core_died", {{"how", to_string(exit)}, {"epoch", epoch_}});
  if (draining_) {
    exit_code_ = exit_failed;
    return;
  }
  if (segment_) segment_->abort();
  if (!may_restart()) return;
  if (auto status = start_core(); !status) give_up(exit_code_of(status.error().code), status.error().message);
}

void Supervisor::on_rank_exit(std::uint32_t rank) {
  const ChildExit exit = ranks_[rank].process->reap();
  ranks_[rank].process.reset();
  if (exit_code_) return;
  log(LogLevel::error, "rank_died", {{"rank", rank}, {"how", to_string(exit)}, {"epoch", epoch_}});
  if (segment_) segment_->abort();
  if (core_) core_->control().send("lost " + std::to_string(epoch_) + " " + std::to_string(rank) + " exit");
  if (!may_restart()) return;
  if (auto status = start_rank(rank); !status) return give_up(exit_code_of(status.error().code), status.error().message);
  new_epoch();
}

bool Supervisor::may_restart() {
  const auto now = Clock::now();
  deaths_.push_back(now);
  while (!deaths_.empty() && now - deaths_.front() > storm_window) deaths_.pop_front();
  if (deaths_.size() <= settings_.restarts_max) return true;
  give_up(exit_rank_lost, std::to_string(deaths_.size()) + " processes died within a minute, which is more than --restarts-max " +
                              std::to_string(settings_.restarts_max) + "; see the log lines above for the causes");
  return false;
}

void Supervisor::give_up(int code, const std::string& why) {
  if (exit_code_) return;
  std::fprintf(stderr, "althing: %s\n", why.c_str());
  exit_code_ = code;
}

void Supervisor::shut_down() {
  if (core_) {
    core_->control().send("stop");
    if (!readable_within(core_->pidfd(), core_stop_wait)) core_->signal(SIGKILL);
    core_->reap();
    core_.reset();
  }
  if (segment_) segment_->abort();
  for (Rank& rank : ranks_)
    if (rank.process) rank.process->control().send("stop");
  for (Rank& rank : ranks_) {
    if (!rank.process) continue;
    if (!readable_within(rank.process->pidfd(), rank_stop_wait)) rank.process->signal(SIGKILL);
    rank.process->reap();
    rank.process.reset();
  }
  if (!settings_.ready_file.empty()) ::unlink(settings_.ready_file.c_str());
}

}  // namespace althing::actors
