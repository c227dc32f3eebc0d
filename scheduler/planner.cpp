// What the next step computes. Tokens go to decodes first, then to prefills; pages go by age, oldest first. When pages run out the latest
// running sequence gives way to an older one and starts again later from its tokens.
// Invariants: the oldest running sequence gets work in every step in which its pages are not merely on their way back, so nothing
// livelocks; and once a sequence is short of pages no younger one takes any, so nothing starves.
#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {

// What is left while one step is planned.
struct Core::State::Room {
  std::uint32_t tokens = 0;     // for prefill; decodes are set aside already
  bool short_of_pages = false;  // a sequence could not get a page: younger ones use what they hold
  bool preempted = false;
};

void Core::State::plan_steps() {
  while (plan_step()) {
  }
}

bool Core::State::plan_step() {
  if (!ready || sequences.empty() || flights.size() >= config.limits.steps_in_flight_max) return false;
  Room room;
  room.tokens = config.limits.step_tokens_max;
  for (const Sequence* sequence : running)
    if (sequence->wants_work() && sequence->decodes()) --room.tokens;
  StepPlan plan;
  Flight flight;
  // Preemption shortens `running` from behind the row in hand.
  for (std::size_t i = 0; i < running.size(); ++i) plan_row(*running[i], room, plan, flight);
  if (!room.short_of_pages && !room.preempted) admit_waiting(room, plan, flight);
  if (plan.work.empty()) return false;

  plan.step = StepId{last_step.value + 1};
  plan.epoch = epoch;
  plan.snapshot = snapshot_due;
  if (!snapshot_due) plan.base = last_step;
  std::sort(cleared.begin(), cleared.end());
  plan.cleared = std::exchange(cleared, {});
  const auto by_row = [](const auto& a, const auto& b) { return a.row < b.row; };
  std::sort(plan.work.begin(), plan.work.end(), by_row);
  std::sort(flight.work.begin(), flight.work.end(), by_row);
  flight.step = plan.step;
  last_step = plan.step;
  snapshot_due = false;
  flights.push_back(std::move(flight));
  effects.emplace_back(RunStep{std::move(plan)});
  return true;
}

void Core::State::plan_row(Sequence& sequence, Room& room, StepPlan& plan, Flight& flight) {
  if (!sequence.wants_work()) return;
  const bool decode = sequence.decodes();
  const std::uint32_t wanted = decode ? 1 : std::min({sequence.left(), config.limits.prefill_chunk_max, room.tokens});
  if (wanted == 0) return;
  std::uint32_t count = count_fitting(sequence, wanted, room.short_of_pages ? 0 : pool.free_count());
  if (count == 0 && !room.short_of_pages) {
    make_room(sequence, room);
    count = count_fitting(sequence, wanted, pool.free_count());
  }
  if (count == 0) {
    room.short_of_pages = true;
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
    if (!running.empty() && !has_pages_for(sequence)) return;
    const std::uint32_t wanted = std::min({sequence.left(), config.limits.prefill_chunk_max, room.tokens});
    const std::uint32_t count = count_fitting(sequence, wanted, pool.free_count());
    if (count == 0) return;
    waiting.pop_front();
    // A younger one may still have a row: it kept it while it waited for its last draw.
    const auto older = [](const Sequence* a, const Sequence* b) { return a->number < b->number; };
    running.insert(std::lower_bound(running.begin(), running.end(), &sequence, older), &sequence);
    const auto free_row = std::find(rows.begin(), rows.end(), nullptr);
    *free_row = &sequence;
    sequence.running = true;
    sequence.row = RowIndex{static_cast<std::uint32_t>(free_row - rows.begin())};
    plan.set.push_back(RowSetup{sequence.row, sequence.request, sequence.sampling});
    room.tokens -= count;
    schedule(sequence, count, plan, flight);
  }
}

// Whether to start one more. Either everything that runs fits to its very end, or there is room for its tokens beside what running
// prefills still take, and a page for each running row to grow into: a sequence started on the last page would be preempted at once.
bool Core::State::has_pages_for(const Sequence& sequence) const {
  std::uint64_t to_the_end = needs.peak(sequence.positions_max());
  std::uint64_t now = needs.peak(std::min(sequence.known() + 1, sequence.positions_max())) + running.size();
  for (const Sequence* other : running) {
    to_the_end += needs.peak(other->positions_max());
    if (!other->wants_work() || other->decodes()) continue;
    const std::uint32_t need = needs.peak(other->known());
    now += need - std::min(need, other->held());
  }
  return to_the_end <= pool.total() || now <= pool.free_count();
}

// Preempts younger sequences until the next token of `sequence` has its pages, counting those that come back by themselves when the steps
// in flight are done: waiting a step is cheaper than computing a sequence again.
void Core::State::make_room(const Sequence& sequence, Room& room) {
  const std::uint32_t need = new_pages(sequence, 1);
  while (pool.free_count() + pages_soon() < need) {
    // One that only waits for its last draw has its pages counted already.
    const auto victim = std::find_if(running.rbegin(), running.rend(), [](const Sequence* s) { return s->wants_work(); });
    if (victim == running.rend() || (*victim)->number <= sequence.number) return;
    preempt(**victim);
    room.preempted = true;
  }
}

void Core::State::preempt(Sequence& sequence) {
  ++sequence.preemptions;
  ++totals.preemptions;
  leave_row(sequence);
  wait_again(sequence);
}

// Pages that come back when all steps in flight are done, at the latest.
std::uint32_t Core::State::pages_soon() const {
  std::size_t sum = 0;
  for (const Flight& flight : flights) sum += flight.release.size();
  for (const Sequence* sequence : running) {
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

// REQUIRES: the pool has the pages, and 1 <= count <= sequence.left().
void Core::State::schedule(Sequence& sequence, std::uint32_t count, StepPlan& plan, Flight& flight) {
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    std::vector<PageId>& pages = sequence.tables[g].pages;
    const std::uint32_t covering = pages_covering(config.kv.groups[g], sequence.planned + count);
    if (covering == pages.size()) continue;
    PageGrant grant{sequence.row, static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(pages.size()), {}};
    while (pages.size() < covering) {
      pages.push_back(pool.take());
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
