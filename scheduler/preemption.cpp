// Who gives way to whom. For want of pages the younger gives way to the older, never the other way round, so the oldest always gets on. And a tenant
// that is behind, and has less than half of its share of rows or pages, gets some of another's: before any row of a step is planned, at most one row
// a step, and never so many that the two would have changed places. The other half comes as requests end. Of those that may give way it is one of the
// tenant that holds most; of its requests the least urgent, then the cheapest to compute again. Pages that are left stay known to the prefix index,
// so coming back is often nearly free.
#include <algorithm>
#include <tuple>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// The smaller gives way first: priority, then those without a deadline or with a late one, then cost, then the younger.
auto worth(const Sequence& s) { return std::tuple(s.priority, s.deadline_ms != 0, ~s.deadline_ms, s.planned, ~s.turn); }

}  // namespace

// Until the next token of `sequence` has its pages, counting those that come back by themselves when the steps in flight are done: waiting a step is
// cheaper than computing a sequence again.
void Core::State::make_room(const Sequence& sequence, Room& room) {
  const std::uint32_t need = new_pages(sequence, 1);
  while (book_of(sequence).available() + pages_soon(sequence.dp_group) < need) {
    const auto held = pages_held(sequence.dp_group);
    Sequence* victim = nullptr;
    for (Sequence* other : running) {
      // One that only waits for its last draw has its pages counted already.
      if (other->dp_group != sequence.dp_group || !other->wants_work() || other->turn <= sequence.turn) continue;
      const auto gives_way = [&](const Sequence& s) { return std::tuple(~held.at(s.tenant), worth(s)); };
      if (victim == nullptr || gives_way(*other) < gives_way(*victim)) victim = other;
    }
    if (victim == nullptr) return;
    preempt(*victim, sequence, PreemptionCause::pages);
    room.of(sequence).preempted = true;
  }
}

std::map<const Tenant*, std::uint64_t> Core::State::pages_held(DpGroup group) const {
  std::map<const Tenant*, std::uint64_t> held;
  for (const Sequence* sequence : running)
    if (sequence->dp_group == group) held[sequence->tenant] += sequence->held();
  return held;
}

// REQUIRES: nothing is planned yet in this step.
void Core::State::make_way(Room& room) {
  if (fair.active() < 2 || fair.waiting() == 0) return;
  Sequence* const next = next_to_start();
  if (next == nullptr || next->in_flight > 0) return;
  Sequence* victim = nullptr;
  if (running.size() == rows.size() && (victim = row_over_share(*next)) == nullptr) return;
  if (!start_for(*next, room)) return free_pages_over_share(*next, room);
  if (victim != nullptr) preempt(*victim, *next, PreemptionCause::share);
  room.expected = next;
}

// Of the tenant with most rows among those that are ahead of next's; null when giving one up would not bring the two closer.
Sequence* Core::State::row_over_share(const Sequence& next) const {
  const Tenant* most = nullptr;
  for (const Sequence* sequence : running)
    if (sequence->tenant->served > next.tenant->served && (most == nullptr || sequence->tenant->running > most->running)) most = sequence->tenant;
  if (most == nullptr || most->running < next.tenant->running + 2 ||
      (next.tenant->running > 0 && next.tenant->running * 2 * fair.active() >= rows.size()))
    return nullptr;
  Sequence* victim = nullptr;
  for (Sequence* sequence : running)
    if (sequence->tenant == most && sequence != running.front() && sequence->wants_work() && (victim == nullptr || worth(*sequence) < worth(*victim)))
      victim = sequence;
  return victim;
}

// In the group where least is missing; it starts when the steps in flight are done with what is given up here.
void Core::State::free_pages_over_share(const Sequence& next, Room& room) {
  std::vector<Sequence*> victims;
  std::uint64_t least = 0;
  for (std::uint32_t g = 0; g < books.size(); ++g) {
    const std::uint64_t wanted = pages_wanted(next, DpGroup{g}, prefix_hit(next, DpGroup{g}));
    const std::uint64_t there = books[g].available() + std::uint64_t{pages_soon(DpGroup{g})};
    if (there >= wanted) return;  // it has only to wait
    if (!victims.empty() && wanted - there >= least) continue;
    if (auto found = pages_over_share(next, DpGroup{g}, wanted - there); !found.empty()) {
      victims = std::move(found);
      least = wanted - there;
    }
  }
  for (Sequence* victim : victims) {
    room.of(*victim).preempted = true;
    preempt(*victim, next, PreemptionCause::share);
  }
}

// So many sequences that their pages are enough; none when some tenant would have less left than next's would have then.
std::vector<Sequence*> Core::State::pages_over_share(const Sequence& next, DpGroup group, std::uint64_t missing) const {
  auto held = pages_held(group);
  const std::uint64_t mine = held[next.tenant] + missing;
  if (next.tenant->running > 0 && mine * 2 * fair.active() > books[group.value].total()) return {};
  std::vector<Sequence*> candidates;
  for (Sequence* sequence : running)
    if (sequence->dp_group == group && sequence != running.front() && sequence->wants_work() && sequence->tenant->served > next.tenant->served)
      candidates.push_back(sequence);
  std::vector<Sequence*> victims;
  while (missing > 0) {
    Sequence* victim = nullptr;
    for (Sequence* s : candidates) {
      if (s->held() == 0 || held[s->tenant] < mine + s->held()) continue;
      if (victim == nullptr || std::tuple(~held[s->tenant], worth(*s)) < std::tuple(~held[victim->tenant], worth(*victim))) victim = s;
    }
    if (victim == nullptr) return {};
    victims.push_back(victim);
    held[victim->tenant] -= victim->held();
    missing -= std::min<std::uint64_t>(missing, victim->held());
    std::erase(candidates, victim);
  }
  return victims;
}

void Core::State::preempt(Sequence& sequence, const Sequence& by, PreemptionCause cause) {
  ++sequence.preemptions;
  ++totals.preemptions;
  if (cause == PreemptionCause::share) ++totals.preemptions_for_share;
  effects.emplace_back(Preempted{sequence.request, by.request, cause, sequence.planned});
  leave_row(sequence);
  fair.wait_again(sequence);
}

}  // namespace althing::scheduler
