// The supervisor: see the header.
#include "tests/simulation/supervisor_model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace althing::tests {
namespace {

constexpr Timeline::Time frozen_us = 250'000, patience_most_us = 8'000'000;
// One more of a member in a minute is quarantine, and a cluster that has nobody left ends: that is no fault of a seed here.
constexpr std::uint32_t deaths_of_one_max = 6;

// Every rank holds all experts, so a whole DP group holds the model.
bool hold_whole_model(const Grid& grid, const std::vector<bool>& alive) {
  for (std::uint32_t group = 0; group < grid.dp; ++group) {
    const auto begin = alive.begin() + group * grid.tp;
    if (std::all_of(begin, begin + grid.tp, [](bool lives) { return lives; })) return true;
  }
  return false;
}

actors::MembershipConfig config_of(const ClusterSetup& setup) {
  actors::MembershipConfig config;
  config.grids = setup.grids;
  config.spares = setup.spares;
  config.shrink = setup.shrink;
  config.hold_whole_model = hold_whole_model;
  return config;
}

}  // namespace

SupervisorModel::SupervisorModel(Stage& stage, RankProcesses& ranks, Links links)
    : stage_(stage), ranks_(ranks), links_(std::move(links)), membership_(config_of(stage.setup)), processes_(membership_.size()) {}

void SupervisorModel::begin() {
  for (std::uint32_t member = 0; member < membership_.size(); ++member) start(member);
}

void SupervisorModel::start(std::uint32_t member) {
  Process& process = processes_[member];
  process.loaded = false;
  process.hangs_since = 0;
  membership_.started(member);
  ranks_.start(member);
  const std::uint64_t takes_us = stage_.setup.respawn_us * stage_.dice.between(80, 150) / 100;
  stage_.time.after(takes_us, [this, member, life = ++process.life] {
    if (processes_[member].life == life) loaded(member);
  });
}

// The message that tells it what to join may have waited for it.
void SupervisorModel::loaded(std::uint32_t member) {
  processes_[member].loaded = true;
  membership_.loaded(member);
  if (const auto rank = membership_.current().rank_of(member); rank && epoch_ > 0) tell_to_join(*rank);
}

void SupervisorModel::died(std::uint32_t member) {
  Process& process = processes_[member];
  ++process.life;
  ++process.deaths;
  ++deaths_;
  process.loaded = false;
  ranks_.kill(member);
  const auto rank = membership_.current().rank_of(member);
  if (rank) {
    ranks_.abort();
    links_.connection_ended(epoch_, *rank);
    links_.lost(epoch_);
  }
  if (membership_.died(member, clock()).count() == 0) start(member);
  if (rank) new_epoch();
}

void SupervisorModel::core_is(bool up) {
  core_up_ = up;
  if (up)
    new_epoch();
  else
    ranks_.abort();
}

void SupervisorModel::new_epoch() {
  if (!core_up_) return;
  ranks_.abort();
  if (const auto next = membership_.next()) return announce(*next);
  stage_.fail("nobody is left to serve");
}

void SupervisorModel::announce(const actors::Membership::Next& next) {
  ++epoch_;
  stage_.note(epoch_, next.by, next.layout.grid.world);
  announced_ = stage_.time.now();
  membership_.announced(next, clock());
  ranks_.begin_epoch(epoch_, next.layout.grid, next.layout.members);
  for (std::uint32_t rank = 0; rank < next.layout.grid.world; ++rank)
    if (processes_[next.layout.members[rank]].loaded) tell_to_join(rank);
}

void SupervisorModel::tell_to_join(std::uint32_t rank) {
  const std::uint64_t takes_us = stage_.dice.between(500, 20'000);
  stage_.time.after(takes_us, [this, rank, epoch = epoch_] { ranks_.join(epoch, rank); });
}

void SupervisorModel::failed(std::uint64_t epoch, const std::vector<std::uint32_t>& silent) {
  if (epoch != epoch_) return;
  for (const std::uint32_t rank : silent) {
    const std::uint32_t member = membership_.current().members[rank];
    if (ranks_.hung(member)) return died(member);  // which announces the next
  }
  new_epoch();
}

void SupervisorModel::ready(std::uint64_t epoch) {
  if (epoch != epoch_) return;
  ready_epoch_ = epoch;
  patience_us_ = 1'000'000;
  membership_.served();
}

void SupervisorModel::resumed(std::uint64_t epoch) {
  if (epoch == epoch_) membership_.resumed();
}

void SupervisorModel::look() {
  for (std::uint32_t member = 0; member < membership_.size(); ++member) {
    if (!ranks_.hung(member)) continue;
    if (processes_[member].hangs_since == 0) processes_[member].hangs_since = stage_.time.now();
    if (stage_.time.now() - processes_[member].hangs_since >= frozen_us) died(member);
  }
  for (const std::uint32_t member : membership_.released(clock())) start(member);
  watch_joining();
  if (!core_up_ || ready_epoch_ != epoch_ || !membership_.can_grow()) return;
  links_.grows(epoch_);
  ranks_.abort();
  announce(*membership_.next());
}

// An epoch that does not become complete is announced again.
void SupervisorModel::watch_joining() {
  if (!core_up_ || ready_epoch_ == epoch_) return;
  for (const std::uint32_t member : membership_.current().members)
    if (!processes_[member].loaded) return;
  if (stage_.time.now() - announced_ < patience_us_) return;
  patience_us_ = std::min(2 * patience_us_, patience_most_us);
  new_epoch();
}

std::optional<std::uint32_t> SupervisorModel::victim() {
  const std::uint32_t member = stage_.dice.between(0, membership_.size() - 1);
  if (!ranks_.alive(member) || processes_[member].deaths >= deaths_of_one_max) return std::nullopt;
  return member;
}

void SupervisorModel::kill_some() {
  if (const auto member = victim()) died(*member);
}

void SupervisorModel::hang_some() {
  if (const auto member = victim()) ranks_.hang(*member);
}

void SupervisorModel::alarm_for_nothing() {
  links_.lost(epoch_);
  new_epoch();
}

}  // namespace althing::tests
