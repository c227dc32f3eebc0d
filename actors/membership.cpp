// The decisions: see the header. Everything is recomputed from what the members are now, so deaths that come together, or while a recovery is under
// way, need no rule of their own.
#include "actors/membership.hpp"

#include <algorithm>
#include <utility>

namespace althing::actors {

std::optional<std::uint32_t> EpochLayout::rank_of(std::uint32_t member) const {
  const auto found = std::find(members.begin(), members.end(), member);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - members.begin());
}

Membership::Membership(MembershipConfig config) : config_(std::move(config)), members_(config_.grids.front().world + config_.spares) {
  current_.grid = config_.grids.front();
  for (std::uint32_t rank = 0; rank < current_.grid.world; ++rank) current_.members.push_back(rank);
  left_out_.resize(current_.grid.world);
}

void Membership::started(std::uint32_t member) { members_[member].state = State::starting; }

void Membership::building(std::uint32_t member) {
  if (members_[member].state == State::ready) members_[member].state = State::building;
}

void Membership::loaded(std::uint32_t member) {
  if (members_[member].state == State::starting || members_[member].state == State::building) members_[member].state = State::ready;
}

std::chrono::milliseconds Membership::died(std::uint32_t member, Clock::time_point now) {
  Member& m = members_[member];
  m.state = State::absent;
  ++m.in_a_row;
  m.deaths.push_back(now);
  while (now - m.deaths.front() > config_.window) m.deaths.pop_front();
  if (m.deaths.size() <= config_.deaths_max && m.in_a_row <= config_.deaths_max) return std::chrono::milliseconds(0);
  // Who behaved for longer than it was locked up, and a window on top, begins anew.
  const auto length = [&] { return config_.quarantine * (1 << m.doublings); };
  if (m.doublings > 0 && now - m.released > length() / 2 + config_.window) m.doublings = 0;
  const std::chrono::milliseconds locked_up = length();
  m.doublings = std::min(m.doublings + 1, quarantine_doublings_max);
  m.state = State::quarantined;
  m.released = now + locked_up;
  return locked_up;
}

void Membership::announced(const Next& next, Clock::time_point now) {
  for (std::uint32_t rank = next.layout.grid.world; rank < current_.grid.world; ++rank) left_out_[rank] = now;
  current_ = next.layout;
  by_ = next.by;
  served_ = resumed_ = false;
}

void Membership::served() {
  served_once_ = served_ = true;
  // Spares too: to wait is what they are for.
  for (std::uint32_t member = 0; member < size(); ++member)
    if (is_ready(member) || current_.rank_of(member)) members_[member].in_a_row = 0;
}

std::vector<std::uint32_t> Membership::released(Clock::time_point now) {
  std::vector<std::uint32_t> free;
  for (std::uint32_t member = 0; member < size(); ++member) {
    Member& m = members_[member];
    if (m.state != State::quarantined || now < m.released) continue;
    m.state = State::absent;
    m.deaths.clear();
    m.in_a_row = 0;
    m.released = now;
    free.push_back(member);
  }
  return free;
}

std::uint32_t Membership::count(bool (Membership::*kind)(std::uint32_t) const) const {
  std::uint32_t sum = 0;
  for (std::uint32_t member = 0; member < size(); ++member) sum += (this->*kind)(member) ? 1 : 0;
  return sum;
}

std::uint32_t Membership::spares_ready() const {
  std::uint32_t sum = 0;
  for (std::uint32_t member = 0; member < size(); ++member) sum += is_ready(member) && !current_.rank_of(member) ? 1 : 0;
  return sum;
}

std::uint32_t Membership::quarantined() const { return size() - count(&Membership::is_expected); }

std::uint32_t Membership::deaths(std::uint32_t member) const {
  return std::max(static_cast<std::uint32_t>(members_[member].deaths.size()), members_[member].in_a_row);
}

// The best grid for so many members; with a tp, the best of that one.
const Grid* Membership::first_grid(std::uint32_t members, std::uint32_t tp) const {
  for (const Grid& grid : config_.grids)
    if (grid.world <= members && (tp == 0 || grid.tp == tp)) return &grid;
  return nullptr;
}

// Who is in place stays there when the grid stays. Holes go to members that live, then to those that are on their way, lower numbers first; in
// another grid, each rank goes first to the member of its own number, so that a world that grows again is as it was.
// REQUIRES: as many members are expected as the grid has ranks.
EpochLayout Membership::fill(const Grid& grid) const {
  constexpr std::uint32_t nobody = UINT32_MAX;
  EpochLayout layout{grid, std::vector<std::uint32_t>(grid.world, nobody)};
  std::vector<bool> taken(size(), false);
  std::uint32_t spare_alive = count(&Membership::lives);
  const bool same = grid == current_.grid;
  for (std::uint32_t rank = 0; rank < grid.world; ++rank) {
    const std::uint32_t own = same ? current_.members[rank] : rank;
    if (!lives(own)) continue;
    layout.members[rank] = own;
    taken[own] = true;
    --spare_alive;
  }
  // A member on its way keeps its place only if nobody who lives can have it.
  std::uint32_t holes = static_cast<std::uint32_t>(std::count(layout.members.begin(), layout.members.end(), nobody));
  for (std::uint32_t rank = 0; rank < grid.world && holes > spare_alive; ++rank) {
    const std::uint32_t own = same ? current_.members[rank] : rank;
    if (layout.members[rank] != nobody || taken[own] || !is_expected(own)) continue;
    layout.members[rank] = own;
    taken[own] = true;
    --holes;
  }
  for (std::uint32_t& member : layout.members) {
    if (member != nobody) continue;
    for (const bool alive : {true, false})
      for (std::uint32_t m = 0; m < size() && member == nobody; ++m)
        if (!taken[m] && is_expected(m) && lives(m) == alive) member = m;
    taken[member] = true;
  }
  return layout;
}

// While the server starts nobody is missing yet: a spare that has loaded first is no reason to give it a place.
EpochLayout Membership::first_layout() const {
  EpochLayout home{config_.grids.front(), {}};
  for (std::uint32_t rank = 0; rank < home.grid.world; ++rank) home.members.push_back(rank);
  const bool all = std::all_of(home.members.begin(), home.members.end(), [&](std::uint32_t m) { return is_expected(m); });
  return all ? home : fill(home.grid);
}

bool Membership::survivors_hold_model() const {
  std::vector<bool> alive;
  for (const std::uint32_t member : current_.members) alive.push_back(lives(member));
  return config_.hold_whole_model(current_.grid, alive);
}

bool Membership::is_better(const Grid& grid) const {
  const auto at = [&](const Grid& g) { return std::find(config_.grids.begin(), config_.grids.end(), g); };
  return at(grid) < at(current_.grid);
}

// A layout that is announced once more before it served comes about as it did at first.
Membership::Next Membership::described(EpochLayout layout, RecoveredBy smaller) const {
  const auto dead = [&](std::uint32_t m) { return !lives(m); };
  const bool waits = std::any_of(layout.members.begin(), layout.members.end(), dead);
  const bool lost = std::any_of(current_.members.begin(), current_.members.end(), dead);
  const bool somebody_died = std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.in_a_row > 0; });
  RecoveredBy by = served_ ? RecoveredBy::epoch : by_;
  if (!served_once_ && !somebody_died)
    by = RecoveredBy::start;
  else if (layout.grid.world < current_.grid.world)
    by = smaller;
  else if (waits)
    by = RecoveredBy::respawn;
  else if (!lost && is_better(layout.grid))
    by = RecoveredBy::grow;
  else if (layout.members != current_.members)
    by = RecoveredBy::spare;
  return {std::move(layout), by};
}

std::optional<Membership::Next> Membership::next() const {
  const std::uint32_t alive = count(&Membership::lives);
  const Grid* best = first_grid(count(&Membership::is_expected));
  if (best == nullptr || (!served_once_ && best != &config_.grids.front())) return std::nullopt;
  if (!served_once_) return described(first_layout(), RecoveredBy::shrink);
  if (alive >= best->world) return described(fill(*best), RecoveredBy::shrink);
  if (survivors_hold_model())
    if (const Grid* grid = first_grid(alive, current_.grid.tp)) return described(fill(*grid), RecoveredBy::replica);
  if (config_.shrink)
    if (const Grid* grid = first_grid(alive)) return described(fill(*grid), RecoveredBy::shrink);
  return described(fill(*best), RecoveredBy::shrink);
}

bool Membership::can_grow() const {
  if (!served_once_ || !resumed_) return false;
  const auto better = next();
  if (!better || !std::all_of(better->layout.members.begin(), better->layout.members.end(), [&](std::uint32_t m) { return is_ready(m); }))
    return false;
  return is_better(better->layout.grid);
}

std::optional<Place> Membership::place_for(std::uint32_t member) const {
  const Grid* best = first_grid(count(&Membership::is_expected));
  if (best == nullptr) return std::nullopt;
  const EpochLayout layout = served_once_ ? fill(*best) : first_layout();
  const auto rank = layout.rank_of(member);
  if (!rank) return std::nullopt;
  return Place{*rank, layout.grid};
}

std::string Membership::why_left_out(std::uint32_t rank, Clock::time_point now) const {
  const std::uint32_t full = config_.grids.front().world, serving = current_.grid.world;
  if (rank < serving || rank >= full) return "";
  const auto seconds = [](Clock::duration time) { return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s"; };
  std::string why = "rank " + std::to_string(rank) + " is left out since " + seconds(now - left_out_[rank]) + ": " + std::to_string(serving) +
                    " of " + std::to_string(full) + (serving == 1 ? " ranks serves" : " ranks serve");
  for (std::uint32_t member = 0; member < size(); ++member) {
    const Member& m = members_[member];
    const std::string who = "; member " + std::to_string(member);
    if (m.state == State::quarantined)
      why += who + " is in quarantine for another " + seconds(std::max(m.released - now, Clock::duration{})) +
             ", deaths: " + std::to_string(deaths(member));
    else if (!lives(member))
      why += who + " is being started again";
    else if (!current_.rank_of(member))
      why += who + " waits for its place";
  }
  return why;
}

}  // namespace althing::actors
