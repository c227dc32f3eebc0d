// The supervisor's dealings with membership: it tells the state machine of membership.hpp what happens, and carries out what follows. Every change of
// layout is an epoch, announced to each of its ranks with its place and the whole grid, so nobody can compute half in the old one and half in the
// new.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "actors/epoch_layout.hpp"
#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"
#include "actors/supervisor.hpp"
#include "scheduler/placement.hpp"
#include "scheduler/smaller_grid.hpp"

namespace althing::actors {
namespace {

std::string list_of(const std::vector<std::uint32_t>& members) {
  std::string text;
  for (const std::uint32_t member : members) text += (text.empty() ? "" : ",") + std::to_string(member);
  return text;
}

// Only grids whose KV memory holds the context that the server promised.
std::vector<Grid> grids_of(const EngineSetup& setup) {
  std::vector<Grid> grids = scheduler::grids_by_preference(setup.grid, setup.shape());
  std::erase_if(grids, [&](const Grid& grid) { return !with_grid(setup, grid); });
  return grids;
}

}  // namespace

void Supervisor::set_up_membership(const EngineSetup& setup) {
  MembershipConfig config;
  config.grids = grids_of(setup);
  config.spares = settings_.spares;
  config.shrink = settings_.on_rank_loss == "shrink";
  config.deaths_max = settings_.restarts_max;
  config.quarantine = std::chrono::seconds(settings_.quarantine_seconds);
  config.hold_whole_model = [shape = setup.shape()](const Grid& grid, const std::vector<bool>& alive) {
    const auto placements = scheduler::place(grid, shape);
    return placements && scheduler::hold_whole_model(*placements, alive);
  };
  membership_.emplace(std::move(config));
  members_.resize(membership_->size());
}

std::string Supervisor::name_of_member(std::uint32_t member) const {
  const auto rank = membership_->current().rank_of(member);
  const std::string number = std::to_string(member);
  if (!rank) return "spare (member " + number + ")";
  return "rank " + std::to_string(*rank) + (*rank == member ? "" : " (member " + number + ")");
}

// Everybody in the layout is told; a rank that still loads finds the message when it has loaded.
void Supervisor::new_epoch() {
  epoch_due_ = false;
  if (segment_) segment_->abort();
  if (core_port_.empty()) return;
  const auto next = membership_->next();
  if (!next)
    return give_up(exit_rank_lost, "too many ranks died more often than --restarts-max " + std::to_string(settings_.restarts_max) +
                                       " within a minute, or as often in a row without serving, and those that are left cannot hold the model in any "
                                       "grid; see the log lines above for the causes");
  announce_epoch(*next);
}

void Supervisor::announce_epoch(const Membership::Next& next) {
  const EpochLayout& layout = next.layout;
  auto segment = gpu::SharedSegment::create(layout.grid.world, EpochId{++epoch_});
  if (!segment) return give_up(exit_code_of(segment.error().code), segment.error().message);
  segment_ = std::move(*segment);
  epoch_began_ = Clock::now();
  recovery_.announced(next.by, epoch_began_);
  membership_->announced(next, epoch_began_);
  log(LogLevel::info, "epoch_announced",
      {{"epoch", epoch_}, {"by", std::string(name_of(next.by))}, {"grid", to_text(layout.grid)}, {"members", list_of(layout.members)}});
  const std::string grid = to_text(layout.grid);
  for (std::uint32_t rank = 0; rank < layout.grid.world; ++rank) {
    std::optional<ChildProcess>& process = members_[layout.members[rank]].process;
    if (!process) continue;
    const std::string join = "join " + std::to_string(epoch_) + " " + core_port_ + " " + std::to_string(rank) + " " + grid;
    if (!process->control().send(join, segment_->descriptor())) process->signal(SIGKILL);  // it does not read its line any more
  }
}

void Supervisor::on_epoch_ready(std::uint64_t epoch) {
  if (epoch != epoch_) return;  // announced anew meanwhile
  ready_epoch_ = epoch;
  join_patience_ = std::chrono::milliseconds(1000);
  deaths_since_ready_ = 0;
  membership_->served();
  recovery_.ready(Clock::now());
  const Grid& grid = membership_->current().grid;
  const std::string by(name_of(membership_->by()));
  log(LogLevel::info, "ready", {{"epoch", epoch}, {"endpoint", endpoint_}, {"grid", to_text(grid)}});
  const std::string of_all = std::to_string(grid.world) + " of " + std::to_string(settings_.ranks) + " ranks serve";
  if (std::exchange(degraded_, membership_->degraded()) != membership_->degraded() && !membership_->degraded()) {
    log(LogLevel::info, "whole_again", {{"epoch", epoch}, {"by", by}, {"ranks", grid.world}});
    note({"whole_again", std::nullopt, "", of_all, epoch});
  }
  if (degraded_) note({"degraded", std::nullopt, "", of_all, epoch});
  if (degraded_) log(LogLevel::warning, "degraded", {{"epoch", epoch}, {"by", by}, {"ranks", grid.world}, {"of", settings_.ranks}, {"tp", grid.tp}});
}

void Supervisor::on_member_exit(std::uint32_t member) {
  const ChildExit exit = members_[member].process->reap();
  const Clock::time_point last_sign = last_sign_of(member);
  const bool condemned = members_[member].condemned;
  members_[member].process.reset();
  members_[member].condemned = false;
  if (exit_code_) return;
  if (const auto rank = membership_->current().rank_of(member)) {
    if (segment_) segment_->abort();
    const std::string cause = recovery_.lost(*rank, to_string(exit), epoch_, last_sign, Clock::now());
    log(LogLevel::error, "rank_died", {{"rank", *rank}, {"member", member}, {"how", to_string(exit)}, {"cause", cause}, {"epoch", epoch_}});
    note({"rank_died", *rank, cause, to_string(exit), epoch_});
    if (core_) core_->control().send("lost " + std::to_string(epoch_) + " " + std::to_string(*rank) + " " + cause);
    epoch_due_ = true;
  } else {
    log(LogLevel::warning, "spare_died", {{"member", member}, {"how", to_string(exit)}, {"cause", condemned ? "frozen" : "exit"}});
    note({"spare_died", std::nullopt, condemned ? "frozen" : "exit", "member " + std::to_string(member) + ": " + to_string(exit), epoch_});
  }
  const auto locked_up = membership_->died(member, Clock::now());
  if (locked_up.count() > 0) {
    log(LogLevel::error, "rank_quarantined",
        {{"member", member},
         {"deaths", membership_->deaths(member)},
         {"restarts_max", settings_.restarts_max},
         {"seconds", locked_up.count() / 1000}});
    note({"quarantined", std::nullopt, "",
          "member " + std::to_string(member) + " died " + std::to_string(membership_->deaths(member)) + " times and is left out for " +
              std::to_string(locked_up.count() / 1000) + " s",
          epoch_});
    return;
  }
  if (auto status = start_member(member); !status) give_up(exit_code_of(status.error().code), status.error().message);
}

void Supervisor::restart_released() {
  if (exit_code_) return;
  for (const std::uint32_t member : membership_->released(Clock::now())) {
    log(LogLevel::warning, "rank_released", {{"member", member}});
    note({"released", std::nullopt, "", "member " + std::to_string(member) + " is started again", epoch_});
    if (auto status = start_member(member); !status) return give_up(exit_code_of(status.error().code), status.error().message);
  }
}

// A better layout is there to be had. Streams that the last change interrupted have gone on before the next interrupts them.
void Supervisor::grow() {
  if (exit_code_ || draining_ || core_port_.empty() || ready_epoch_ != epoch_) return;
  if (!membership_->can_grow()) return;
  // Before its ranks can tell: to the core this is no failure.
  if (core_) core_->control().send("grows " + std::to_string(epoch_));
  if (segment_) segment_->abort();
  announce_epoch(*membership_->next());
}

// An epoch that does not become complete is announced again, with more patience each time: a rank may have answered over a connection that was about
// to end. CAF's connect has no deadline that can be relied on, so a rank that reads its line and still does not join is started again; and so is one
// whose process joins while its executor does not take the epoch up: it hangs between steps, where nothing else would ever find it.
void Supervisor::watch_joining() {
  if (core_port_.empty() || exit_code_ || ready_epoch_ == epoch_) return;
  const std::vector<std::uint32_t>& layout = membership_->current().members;
  Clock::time_point since = epoch_began_;
  for (const std::uint32_t m : layout) {
    if (!members_[m].process || !members_[m].loaded) return;
    since = std::max(since, *members_[m].loaded);
  }
  const auto is_missing = [&](std::uint32_t m) { return members_[m].joined != epoch_; };
  const auto hangs = [&](std::uint32_t m) { return !is_missing(m) && members_[m].page && members_[m].page->stamps()->epoch.load() != epoch_; };
  const bool somebody_missing = std::any_of(layout.begin(), layout.end(), is_missing),
             somebody_hangs = std::any_of(layout.begin(), layout.end(), hangs);
  // A rank may be in the middle of its TLS handshake on a machine that is busy, or of its last step; that is not yet a reason to kill it.
  if (Clock::now() - since < (somebody_missing ? 5 : somebody_hangs ? 2 : 1) * join_patience_) return;
  join_patience_ = std::min(join_patience_ * 2, std::chrono::milliseconds(30'000));
  bool killed = false;
  for (const std::uint32_t m : layout) {
    if (!is_missing(m) && !hangs(m)) continue;
    log(LogLevel::error, "rank_did_not_join",
        {{"who", name_of_member(m)}, {"epoch", epoch_}, {"why", is_missing(m) ? "its process did not connect" : "its executor does not answer"}});
    members_[m].process->signal(SIGKILL);
    members_[m].loaded.reset();
    killed = true;
  }
  if (killed) return;  // its death announces the next epoch
  log(LogLevel::warning, "epoch_incomplete", {{"epoch", epoch_}});
  new_epoch();
}

// For the core's metrics, whenever it changes and whenever the core is another.
void Supervisor::tell_members() {
  if (!core_ || core_port_.empty()) return;
  std::string text = "members " + std::to_string(membership_->spares_ready()) + " " + std::to_string(membership_->quarantined()) + " " +
                     (membership_->degraded() ? "1" : "0");
  if (text == members_told_ || !core_->control().send(text)) return;
  members_told_ = std::move(text);
}

}  // namespace althing::actors
