// What the next step computes. Tokens go to decodes first, then to prefills; pages of each DP group's pool go by age, oldest first. When a pool runs
// out the latest running sequence of its group gives way to an older one and starts again later from its tokens, in whichever group has room.
// Invariants: the oldest running sequence gets work in every step in which its pages are not merely on their way back, so nothing
// livelocks; and once a sequence is short of pages no younger one of its group takes any, so nothing starves.
#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// A step restores at most so many times the tokens that it may compute, or one sequence: copying is that much faster.
constexpr std::uint32_t restored_steps = 16;

}  // namespace

// What is left while one step is planned.
struct Core::State::Room {
  struct Group {
    bool short_of_pages = false;  // a sequence could not get a page: younger ones use what they hold
    bool preempted = false;
  };
  explicit Room(std::size_t dp_groups) : groups(dp_groups) {}
  Group& of(const Sequence& sequence) { return groups[sequence.dp_group.value]; }

  std::uint32_t tokens = 0;    // for prefill; decodes are set aside already
  std::uint32_t restored = 0;  // tokens that come back from the mirror in this step
  std::vector<Group> groups;
};

void Core::State::plan_steps() {
  while (plan_step()) {
  }
}

bool Core::State::plan_step() {
  if (!ready || (sequences.empty() && scrub_due.empty()) || flights.size() >= config.limits.steps_in_flight_max) return false;
  Room room(pools.size());
  room.tokens = config.limits.step_tokens_max;
  for (const Sequence* sequence : running)
    if (sequence->wants_work() && sequence->decodes() && !sequence->restoring) --room.tokens;
  StepPlan plan;
  Flight flight;
  // Preemption shortens `running` from behind the row in hand.
  for (std::size_t i = 0; i < running.size(); ++i) plan_row(*running[i], room, plan, flight);
  admit_waiting(room, plan, flight);
  if (plan.work.empty() && scrub_due.empty() && flight.restores.empty()) return false;
  if (mirrors_pages())
    for (Sequence* sequence : running) offer_pages(*sequence, plan);

  plan.step = StepId{last_step.value + 1};
  plan.epoch = epoch;
  plan.snapshot = snapshot_due;
  if (!snapshot_due) plan.base = last_step;
  std::sort(cleared.begin(), cleared.end());
  plan.cleared = std::exchange(cleared, {});
  const auto by_row = [](const auto& a, const auto& b) { return a.row < b.row; };
  std::sort(plan.work.begin(), plan.work.end(), by_row);
  std::sort(flight.work.begin(), flight.work.end(), by_row);
  plan.scrub = std::exchange(scrub_due, {});
  flight.scrub = plan.scrub;
  const auto here = std::stable_partition(forget_due.begin(), forget_due.end(), [this](const Forgotten& f) { return !is_here(f); });
  flight.forget.assign(here, forget_due.end());
  forget_due.erase(here, forget_due.end());
  for (const Forgotten& forgotten : flight.forget) plan.forget.push_back(forgotten.place);
  flight.step = plan.step;
  last_step = plan.step;
  snapshot_due = false;
  flights.push_back(std::move(flight));
  effects.emplace_back(RunStep{std::move(plan)});
  return true;
}

void Core::State::plan_row(Sequence& sequence, Room& room, StepPlan& plan, Flight& flight) {
  if (!sequence.wants_work() || sequence.restoring) return;
  const bool decode = sequence.decodes();
  const std::uint32_t wanted = decode ? 1 : std::min({sequence.left(), config.limits.prefill_chunk_max, room.tokens});
  if (wanted == 0) return;
  const PagePool& pool = pool_of(sequence);
  bool& short_of_pages = room.of(sequence).short_of_pages;
  std::uint32_t count = count_fitting(sequence, wanted, short_of_pages ? 0 : pool.free_count());
  if (count == 0 && !short_of_pages) {
    make_room(sequence, room);
    count = count_fitting(sequence, wanted, pool.free_count());
  }
  if (count == 0) {
    short_of_pages = true;
    return;
  }
  if (!decode) room.tokens -= count;
  schedule(sequence, count, plan, flight);
}

// First come, first served: nobody overtakes the head of the queue, so every accepted request gets its turn.
void Core::State::admit_waiting(Room& room, StepPlan& plan, Flight& flight) {
  while (!waiting.empty() && running.size() < rows.size() && room.tokens > 0) {
    Sequence& sequence = *waiting.front();
    // A preempted one may still have a draw in flight; its tokens are not all known before that.
    if (sequence.in_flight > 0) return;
    const auto start = start_for(sequence, room);
    if (!start) return;
    // Copying delays everybody in the step, so a crowd comes back in several.
    if (room.restored > 0 && start->restored > 0 && room.restored + start->restored > restored_steps * config.limits.step_tokens_max) return;
    sequence.dp_group = start->group;
    waiting.pop_front();
    // A younger one may still have a row: it kept it while it waited for its last draw.
    const auto older = [](const Sequence* a, const Sequence* b) { return a->number < b->number; };
    running.insert(std::lower_bound(running.begin(), running.end(), &sequence, older), &sequence);
    const auto free_row = std::find(rows.begin(), rows.end(), nullptr);
    *free_row = &sequence;
    sequence.running = true;
    sequence.row = RowIndex{static_cast<std::uint32_t>(free_row - rows.begin())};
    plan.set.push_back(RowSetup{sequence.row, sequence.request, sequence.sampling, sequence.dp_group, sequence.trace_top_m});
    if (start->restored > 0) {
      room.restored += start->restored;
      restore(sequence, start->restored, plan, flight);
      continue;
    }
    const std::uint32_t wanted = std::min({sequence.left(), config.limits.prefill_chunk_max, room.tokens});
    const std::uint32_t count = count_fitting(sequence, wanted, pool_of(sequence).free_count());
    room.tokens -= count;
    schedule(sequence, count, plan, flight);
  }
}

// Of the groups where it can start the one whose mirror has most of it, then the one with most free pages, then the lower one. None where somebody
// was short of pages in this step.
std::optional<Core::State::Start> Core::State::start_for(Sequence& sequence, const Room& room) {
  std::optional<Start> best;
  for (std::uint32_t g = 0; g < pools.size(); ++g) {
    const std::uint32_t free = pools[g].free_count();
    if (room.groups[g].short_of_pages || room.groups[g].preempted || new_pages(sequence, 1) > free) continue;
    const Start start{DpGroup{g}, restorable(sequence, DpGroup{g})};
    if (start.restored > 0 && pages_to_start(sequence, start.restored) > free) continue;
    if (best && start.restored < best->restored) continue;
    if (best && start.restored == best->restored && free <= pools[best->group.value].free_count()) continue;
    if (has_pages_for(sequence, start.group)) best = start;
  }
  return best;
}

// For what is restored and for the token behind it: never more than what computing that token needs in any case.
std::uint32_t Core::State::pages_to_start(const Sequence& sequence, std::uint32_t restored) const {
  std::uint32_t sum = 0;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g)
    sum += pages_covering(config.kv.groups[g], restored + 1) - first_page_read(config.kv.groups[g], restored);
  return sum;
}

// Whether to start one more in a group. Either nothing runs there, or everything that does fits to its very end, or there is room for its tokens
// beside what running prefills still take, and a page for each running row to grow into: a sequence started on the last page would be preempted at
// once.
bool Core::State::has_pages_for(const Sequence& sequence, DpGroup group) const {
  std::uint64_t to_the_end = needs.peak(sequence.positions_max());
  std::uint64_t now = needs.peak(std::min(sequence.known() + 1, sequence.positions_max()));
  bool alone = true;
  for (const Sequence* other : running) {
    if (other->dp_group != group) continue;
    alone = false;
    ++now;
    to_the_end += needs.peak(other->positions_max());
    if (!other->wants_work() || other->decodes()) continue;
    const std::uint32_t need = needs.peak(other->known());
    now += need - std::min(need, other->held());
  }
  const PagePool& pool = pools[group.value];
  return alone || to_the_end <= pool.total() || now <= pool.free_count();
}

// Preempts younger sequences of its group until the next token of `sequence` has its pages, counting those that come back by themselves when the
// steps in flight are done: waiting a step is cheaper than computing a sequence again.
void Core::State::make_room(const Sequence& sequence, Room& room) {
  const std::uint32_t need = new_pages(sequence, 1);
  while (pool_of(sequence).free_count() + pages_soon(sequence.dp_group) < need) {
    // One that only waits for its last draw has its pages counted already.
    const auto may_go = [&](const Sequence* s) { return s->dp_group == sequence.dp_group && s->wants_work(); };
    const auto victim = std::find_if(running.rbegin(), running.rend(), may_go);
    if (victim == running.rend() || (*victim)->number <= sequence.number) return;
    preempt(**victim);
    room.of(sequence).preempted = true;
  }
}

void Core::State::preempt(Sequence& sequence) {
  ++sequence.preemptions;
  ++totals.preemptions;
  leave_row(sequence);
  wait_again(sequence);
}

// Pages of a group that come back when all steps in flight are done, at the latest.
std::uint32_t Core::State::pages_soon(DpGroup group) const {
  std::size_t sum = 0;
  for (const Flight& flight : flights)
    for (const LeftPage& left : flight.release) sum += left.dp_group == group ? 1 : 0;
  for (const Sequence* sequence : running) {
    if (sequence->dp_group != group) continue;
    if (!sequence->wants_work()) {
      sum += sequence->held();
      continue;
    }
    if (sequence->in_flight == 0) continue;
    for (std::size_t g = 0; g < sequence->tables.size(); ++g)
      sum += first_page_read(config.kv.groups[g], sequence->planned) - sequence->tables[g].released;
  }
  return static_cast<std::uint32_t>(sum);
}

std::uint32_t Core::State::new_pages(const Sequence& sequence, std::uint32_t count) const {
  std::uint32_t sum = 0;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g)
    sum += pages_covering(config.kv.groups[g], sequence.planned + count) - static_cast<std::uint32_t>(sequence.tables[g].pages.size());
  return sum;
}

// The most tokens, `wanted` at most, that need no more than `pages` new pages. 0 if not even one fits.
std::uint32_t Core::State::count_fitting(const Sequence& sequence, std::uint32_t wanted, std::uint32_t pages) const {
  if (new_pages(sequence, wanted) <= pages) return wanted;
  std::uint32_t fits = 0;
  std::uint32_t over = wanted;
  while (over - fits > 1) {
    const std::uint32_t middle = fits + (over - fits) / 2;
    (new_pages(sequence, middle) <= pages ? fits : over) = middle;
  }
  return fits;
}

// REQUIRES: its group's pool has the pages, and 1 <= count <= sequence.left().
void Core::State::schedule(Sequence& sequence, std::uint32_t count, StepPlan& plan, Flight& flight) {
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    std::vector<PageId>& pages = sequence.tables[g].pages;
    const std::uint32_t covering = pages_covering(config.kv.groups[g], sequence.planned + count);
    if (covering == pages.size()) continue;
    PageGrant grant{sequence.row, static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(pages.size()), {}};
    while (pages.size() < covering) {
      pages.push_back(pool_of(sequence).take());
      grant.pages.push_back(pages.back());
    }
    plan.pages.push_back(std::move(grant));
  }
  RowWork work;
  work.row = sequence.row;
  work.start = sequence.planned;
  work.count = count;
  // With a draw in flight the token is on the device only.
  if (sequence.pending == 0) {
    const auto first = sequence.tokens.begin() + sequence.planned;
    work.tokens.assign(first, first + count);
  }
  work.sample = sequence.planned + count == sequence.length();
  const bool decode = count == 1 && sequence.planned >= sequence.prompt_count;
  flight.work.push_back(FlightWork{&sequence, sequence.request, sequence.row, count, work.sample, decode});
  sequence.starts[sequence.in_flight++] = sequence.planned;
  sequence.planned += count;
  if (work.sample) ++sequence.pending;
  plan.work.push_back(std::move(work));
}

}  // namespace althing::scheduler
