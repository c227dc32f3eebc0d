// Who computes what in the next epoch: a pure state machine over the processes that ranks may run in. A *member* is such a process, or the place
// where one is started again: ranks + spares of them, numbered once and for all. The supervisor tells it what happened and when; it answers which
// layout comes next, which members to start, and which to leave alone for a while. It knows no process, no clock and no model, so every life of it
// can be tried out. Invariants: a layout names every rank of its grid once, and no member that is dead for certain when another could be there
// instead; a smaller grid is chosen only after the full one has served; a member in quarantine is in no layout.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/placement.hpp"

namespace althing::actors {

// How a membership came about. start: the server's first one. grow: nothing was wrong, and a better layout could be had. epoch: the same processes in
// the same places once more, because the core is another, or because the epoch before made no progress.
enum class RecoveredBy : std::uint8_t { respawn, spare, replica, shrink, grow, start, epoch };
inline constexpr int recovered_by_count = static_cast<int>(RecoveredBy::epoch) + 1;
constexpr std::string_view name_of(RecoveredBy by) {
  constexpr std::string_view names[recovered_by_count] = {"respawn", "spare", "replica", "shrink", "grow", "start", "epoch"};
  return names[static_cast<int>(by)];
}

struct EpochLayout {
  Grid grid;
  std::vector<std::uint32_t> members;  // by rank

  std::optional<std::uint32_t> rank_of(std::uint32_t member) const;
  friend bool operator==(const EpochLayout&, const EpochLayout&) = default;
};

// What a member is, or will be once it has loaded.
struct Place {
  std::uint32_t rank = 0;
  Grid grid;

  friend bool operator==(const Place&, const Place&) = default;
};

struct MembershipConfig {
  std::vector<Grid> grids;  // the full one, then smaller ones, best first
  std::uint32_t spares = 0;
  bool shrink = false;  // when a rank is lost: serve on with fewer, rather than wait for it
  // Whether ranks hold the whole model between them, by rank of the grid.
  std::function<bool(const Grid&, const std::vector<bool>& alive)> hold_whole_model;
  std::uint32_t deaths_max = 10;  // of one member in `window`, or in a row without serving; one more is quarantine
  std::chrono::milliseconds window{60'000};
  std::chrono::milliseconds quarantine{30'000};  // the first one; each that follows soon is twice as long
};

class Membership {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int quarantine_doublings_max = 6;

  explicit Membership(MembershipConfig config);

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }

  struct Next {
    EpochLayout layout;
    RecoveredBy by = RecoveredBy::epoch;
  };

  // --- what happened ---
  void started(std::uint32_t member);
  // It makes itself into something else. It is a survivor all the same, and takes whatever place it is told next.
  void building(std::uint32_t member);
  void loaded(std::uint32_t member);
  // Returns for how long it is in quarantine; zero: start it again at once.
  std::chrono::milliseconds died(std::uint32_t member, Clock::time_point now);
  void announced(const Next& next, Clock::time_point now);
  // The announced epoch serves.
  void served();
  // And every stream that the change interrupted goes on, if there was any.
  void resumed() { resumed_ = true; }

  // --- what follows ---
  // The layout of the next epoch, if it were announced now. None when there is no legal one for the members that may come back.
  std::optional<Next> next() const;
  // A better layout than the current one could be announced, without waiting for anybody, and without interrupting a stream that has not gone on
  // since it was interrupted last.
  bool can_grow() const;
  // Members whose quarantine is over; they count as starting from now on.
  std::vector<std::uint32_t> released(Clock::time_point now);
  // What a member should make itself into while it starts; none: a spare.
  std::optional<Place> place_for(std::uint32_t member) const;

  const EpochLayout& current() const { return current_; }
  RecoveredBy by() const { return by_; }  // how it came about
  // It lives, and is what it was told to be.
  bool is_ready(std::uint32_t member) const { return members_[member].state == State::ready; }
  // It is ready, or will be without being started again.
  bool lives(std::uint32_t member) const { return is_ready(member) || members_[member].state == State::building; }
  // It lives, or may be started.
  bool is_expected(std::uint32_t member) const { return members_[member].state != State::quarantined; }
  bool degraded() const { return served_once_ && current_.grid.world < config_.grids.front().world; }
  std::uint32_t spares_ready() const;
  std::uint32_t quarantined() const;
  std::uint32_t deaths(std::uint32_t member) const;  // that count against it now
  // Why a rank of the full grid has no place in the current one, and since when, as a sentence for people; "" where it has one or never had.
  std::string why_left_out(std::uint32_t rank, Clock::time_point now) const;

 private:
  enum class State : std::uint8_t { absent, starting, building, ready, quarantined };
  struct Member {
    State state = State::absent;
    std::deque<Clock::time_point> deaths;
    std::uint32_t in_a_row = 0;  // deaths since it served
    int doublings = 0;
    Clock::time_point released;  // from quarantine, now or in the future
  };

  std::uint32_t count(bool (Membership::*kind)(std::uint32_t) const) const;
  const Grid* first_grid(std::uint32_t members, std::uint32_t tp = 0) const;
  bool is_better(const Grid& grid) const;
  EpochLayout fill(const Grid& grid) const;
  EpochLayout first_layout() const;
  bool survivors_hold_model() const;
  Next described(EpochLayout layout, RecoveredBy smaller) const;

  MembershipConfig config_;
  std::vector<Member> members_;
  EpochLayout current_;
  RecoveredBy by_ = RecoveredBy::start;
  std::vector<Clock::time_point> left_out_;  // by rank of the full grid; only of those that the current grid has not
  bool served_once_ = false;
  bool resumed_ = false;  // in the current epoch
  bool served_ = false;   // likewise
};

}  // namespace althing::actors
