// What the next step computes. Tokens go to decodes first, then to prefills, those of the tenants that are furthest behind before others; pages of
// each DP group's pool go by age, oldest first. When a pool runs out a younger sequence of the group gives way (preemption.cpp) and starts again
// later from its tokens, in whichever group has room. Invariants: the oldest running sequence gets a page whenever one can be had, and whoever gets
// tokens before it is charged for them, so nothing livelocks; and once a sequence is short of pages no younger one of its group takes any, so nothing
// starves.
#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// A step restores at most so many times the tokens that it may compute, or one sequence: copying is that much faster.
constexpr std::uint32_t restored_steps = 16;

}  // namespace

void Core::State::plan_steps() {
  while (plan_step()) {
  }
}

bool Core::State::plan_step() {
  if (!ready || (sequences.empty() && scrub_due.empty()) || flights.size() >= config.limits.steps_in_flight_max) return false;
  // Rows that wait for guesses would come back in another step than those that go on now, and the model's weights be read for half of the rows each.
  if (!flights.empty() && std::any_of(running.begin(), running.end(), [](const Sequence* sequence) { return sequence->asked; })) return false;
  Room room(books.size());
  room.tokens = config.limits.step_tokens_max;
  make_way(room);
  for (const Sequence* sequence : running)
    if (sequence->wants_work() && sequence->decodes() && sequence->may_draw() && !sequence->restoring) --room.tokens;
  room.guesses = guesses_to_ask = room_for_guesses(room.tokens);
  StepPlan plan;
  Flight flight;
  allot_prefill(room);
  // Preemption shortens `running` from behind the row in hand.
  for (std::size_t i = 0; i < running.size(); ++i) plan_row(*running[i], room, plan, flight);
  // The tokens went to some that are short of pages: then they go by age.
  if (plan.work.empty() && !running.empty()) {
    for (Sequence* sequence : running) sequence->allotted = room.tokens;
    for (Room::Group& group : room.groups) group.short_of_pages = false;
    for (std::size_t i = 0; i < running.size(); ++i) plan_row(*running[i], room, plan, flight);
  }
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
  // A row whose draw nobody has decided about is left out; the others go on.
  if (!sequence.wants_work() || sequence.restoring || !sequence.may_draw()) return;
  if (!sequence.guessed.empty() || sequence.asked) return;  // what follows depends on which of them hold, or on what is guessed
  const bool decode = sequence.decodes();
  const bool speculates = may_speculate(sequence);
  if (speculates && sequence.in_flight > 0 && waits_to_guess(sequence)) return;
  const std::uint32_t wanted = decode ? 1 : std::min({sequence.left(), config.limits.prefill_chunk_max, sequence.allotted, room.tokens});
  if (wanted == 0) return;
  const PageBook& book = book_of(sequence);
  bool& short_of_pages = room.of(sequence).short_of_pages;
  std::uint32_t count = count_fitting(sequence, wanted, short_of_pages ? 0 : book.available());
  if (count == 0 && !short_of_pages) {
    make_room(sequence, room);
    count = count_fitting(sequence, wanted, book.available());
  }
  if (count == 0) {
    short_of_pages = true;
    return;
  }
  if (!decode) room.tokens -= count;
  if (speculates && sequence.in_flight == 0) {
    sequence.guessed = guesses(sequence, room);
    sequence.guessed.resize(count_fitting(sequence, 1 + static_cast<std::uint32_t>(sequence.guessed.size()), short_of_pages ? 0 : book.available()) -
                            1);
    count += static_cast<std::uint32_t>(sequence.guessed.size());
    room.guesses -= count - 1;
    room.tokens -= count - 1;
  }
  schedule(sequence, count, plan, flight);
}

// With one tenant prefills take tokens by age. With more, those of whoever is furthest behind come first, and so does one that is about to start.
void Core::State::allot_prefill(Room& room) {
  for (Sequence* sequence : running) sequence->allotted = room.tokens;
  if (fair.active() < 2) return;
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : running)
    if (sequence->wants_work() && !sequence->decodes() && !sequence->restoring) prefills.push_back(sequence);
  const auto behind = [](const Sequence* a, const Sequence* b) { return a->tenant->served < b->tenant->served; };
  std::stable_sort(prefills.begin(), prefills.end(), behind);
  std::uint32_t left = room.tokens;
  const Sequence* next = room.expected;
  for (Sequence* sequence : prefills) {
    if (next != nullptr && next->tenant->served < sequence->tenant->served) {
      left -= std::min({next->left(), config.limits.prefill_chunk_max, left});
      next = nullptr;
    }
    const std::uint32_t wanted = std::min({sequence->left(), config.limits.prefill_chunk_max, left});
    // Who is short of pages would keep them from all behind it.
    const bool may_get_pages = sequence == running.front() || new_pages(*sequence, 1) <= book_of(*sequence).available();
    sequence->allotted = may_get_pages ? wanted : 0;
    left -= sequence->allotted;
  }
}

// The first of the tenant that is furthest behind, null when nobody can start. Choices that wait for the first of them, which runs, are passed by,
// and so is who waits for somebody to decide about his next draw.
Sequence* Core::State::next_to_start() const {
  Sequence* next = nullptr;
  for (const Tenant* tenant : fair.queueing()) {
    const auto before = [&](const Sequence* s) {
      const std::uint64_t served = next->tenant->served;
      return tenant->served != served ? tenant->served < served : s->number < next->number;
    };
    if (next != nullptr && tenant->served > next->tenant->served) continue;
    const auto first =
        std::find_if(tenant->waiting.begin(), tenant->waiting.end(), [this](const Sequence* s) { return s->may_draw() && !waits_for_choice(*s); });
    if (first != tenant->waiting.end() && (next == nullptr || before(*first))) next = *first;
  }
  return next;
}

// Nobody overtakes the one whose turn it is, so every accepted request gets its turn.
void Core::State::admit_waiting(Room& room, StepPlan& plan, Flight& flight) {
  while (fair.waiting() > 0 && running.size() < rows.size() && room.tokens > 0) {
    Sequence* const next = next_to_start();
    // A preempted one may still have a draw in flight; its tokens are not all known before that.
    if (next == nullptr || next->in_flight > 0) return;
    Sequence& sequence = *next;
    const auto start = start_for(sequence, room);
    if (!start) return;
    // Copying delays everybody in the step, so a crowd comes back in several.
    if (room.restored > 0 && start->restored > 0 && room.restored + start->restored > restored_steps * config.limits.step_tokens_max) return;
    // Rows may be given the same pages, and what a step can carry has a bound: no more grants than the group has pages.
    if (granted_in(plan, start->group) + grants_to_start(sequence, *start, room.tokens) > config.kv.page_count) return;
    give_row(sequence, start->group, plan);
    note_start(sequence, start->hit);
    if (start->restored > 0) {
      room.restored += start->restored;
      restore(sequence, start->restored, plan, flight);
      continue;
    }
    if (start->hit.position > 0) go_on_from(sequence, start->hit, plan);
    const std::uint32_t wanted = std::min({sequence.left(), config.limits.prefill_chunk_max, room.tokens});
    const std::uint32_t count = count_fitting(sequence, wanted, book_of(sequence).available());
    room.tokens -= count;
    schedule(sequence, count, plan, flight);
  }
}

void Core::State::give_row(Sequence& sequence, DpGroup group, StepPlan& plan) {
  fair.start(sequence);
  // Those that have had a row before are older than some that run.
  const std::uint64_t turn = sequence.started() ? sequence.turn : turns + 1;
  const auto behind = [](std::uint64_t t, const Sequence* other) { return t < other->turn; };
  running.insert(std::upper_bound(running.begin(), running.end(), turn, behind), &sequence);
  const auto free_row = std::find(rows.begin(), rows.end(), nullptr);
  *free_row = &sequence;
  sequence.running = true;
  sequence.dp_group = group;
  sequence.row = RowIndex{static_cast<std::uint32_t>(free_row - rows.begin())};
  RowSetup& setup = plan.set.emplace_back(RowSetup{sequence.row, sequence.request, sequence.sampling, sequence.dp_group, sequence.trace_top_m});
  setup.drafted = config.limits.draft_model && may_be_guessed(sequence);
  if (sequence.sampling.penalizes()) {
    setup.tokens = sequence.tokens;
    setup.prompt_count = sequence.prompt_count;
  }
}

// Of the groups where it can start the one that has most of it, in its pages or in its mirror, then the one with most pages available, then the lower
// one. None where somebody was short of pages in this step. A beginning shorter than what is left is no reason to go where it is, or all that share
// instructions would crowd in one group.
std::optional<Core::State::Start> Core::State::start_for(Sequence& sequence, const Room& room) {
  std::optional<Start> best;
  const auto gain = [&](const Start& start) {
    return start.restored > 0 ? start.restored : start.hit.position >= sequence.known() - start.hit.position ? start.hit.position : 0;
  };
  for (std::uint32_t g = 0; g < books.size(); ++g) {
    const std::uint32_t free = books[g].available();
    if (room.groups[g].short_of_pages || room.groups[g].preempted || new_pages(sequence, 1) > free) continue;
    Start start{DpGroup{g}, restorable(sequence, DpGroup{g}), prefix_hit(sequence, DpGroup{g})};
    // A page that is there is nearer than its copy.
    if (start.hit.position >= start.restored)
      start.restored = 0;
    else
      start.hit = PrefixHit{0, {}, 0, 0, start.hit.miss};
    const std::uint32_t begins = start.restored + start.hit.position;
    if (begins > 0 && pages_to_start(sequence, begins) - start.hit.owned_pages > free) continue;
    if (best && gain(start) < gain(*best)) continue;
    if (best && gain(start) == gain(*best) && free <= books[best->group.value].available()) continue;
    if (has_pages_for(sequence, start.group, start.hit)) best = start;
  }
  return best;
}

// For what is there or restored and for the token behind it: never more than what computing that token needs in any case.
std::uint32_t Core::State::pages_to_start(const Sequence& sequence, std::uint32_t restored) const {
  std::uint32_t sum = 0;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g)
    sum += pages_covering(config.kv.groups[g], restored + 1) - first_page_read(config.kv.groups[g], restored);
  return sum;
}

std::uint64_t Core::State::granted_in(const StepPlan& plan, DpGroup group) const {
  std::uint64_t sum = 0;
  for (const PageGrant& grant : plan.pages)
    if (rows[grant.row.value]->dp_group == group) sum += grant.pages.size();
  return sum;
}

// The most pages that a step grants to a sequence that starts so, with `tokens` left in it.
std::uint64_t Core::State::grants_to_start(const Sequence& sequence, const Start& start, std::uint32_t tokens) const {
  const std::uint32_t begins = start.restored + start.hit.position;
  const std::uint32_t wanted = std::min({sequence.known() - begins, config.limits.prefill_chunk_max, tokens});
  std::uint64_t sum = 0;
  for (const KvGroup& group : config.kv.groups) sum += pages_covering(group, begins + wanted) - first_page_read(group, begins);
  const std::uint64_t kept = start.hit.idle_pages + start.hit.owned_pages;
  return kept + std::min<std::uint64_t>(sum - kept, books[start.group.value].available() - start.hit.idle_pages);
}

// Whether to start one more in a group. Either nothing runs there, or everything that does fits to its very end, or there are the pages wanted
// and probably will be.
bool Core::State::has_pages_for(const Sequence& sequence, DpGroup group, const PrefixHit& hit) const {
  std::uint64_t to_the_end = needs.peak(sequence.positions_max());
  bool alone = true;
  for (const Sequence* other : running) {
    if (other->dp_group != group) continue;
    alone = false;
    to_the_end += needs.peak(other->positions_max());
  }
  const PageBook& book = books[group.value];
  if (alone || to_the_end <= book.total()) return true;
  return pages_wanted(sequence, group, hit) <= book.available() && pages_ahead(sequence, group, hit) <= book.total();
}

// For its tokens beside what running prefills still take, and a page for each running row to grow into: a sequence started on the last page would be
// preempted at once.
std::uint64_t Core::State::pages_wanted(const Sequence& sequence, DpGroup group, const PrefixHit& hit) const {
  std::uint64_t sum = needs.peak(std::min(sequence.known() + 1, sequence.positions_max()));
  sum -= std::min<std::uint64_t>(sum, hit.owned_pages);
  for (const Sequence* other : running) {
    if (other->dp_group != group) continue;
    ++sum;
    if (!other->wants_work() || other->decodes()) continue;
    const std::uint32_t need = needs.peak(other->known());
    sum += need - std::min(need, other->held());
  }
  return sum;
}

// Pages of a group that come back when all steps in flight are done, at the latest: those of which every owner will have gone.
std::uint32_t Core::State::pages_soon(DpGroup group) const {
  const PageBook& book = books[group.value];
  std::map<PageId, std::uint32_t> going;
  std::uint32_t sum = 0;
  const auto goes = [&](PageId page) { sum += ++going[page] == book.owners(page) ? 1 : 0; };
  for (const Flight& flight : flights)
    for (const LeftPage& left : flight.release)
      if (left.dp_group == group) goes(left.page);
  for (const Sequence* sequence : running) {
    if (sequence->dp_group != group || (sequence->wants_work() && sequence->in_flight == 0)) continue;
    for (std::size_t g = 0; g < sequence->tables.size(); ++g) {
      const PageTable& table = sequence->tables[g];
      const std::size_t end = sequence->wants_work() ? first_page_read(config.kv.groups[g], sequence->planned) : table.pages.size();
      for (std::size_t page = table.released; page < end; ++page) goes(table.pages[page]);
    }
  }
  return sum;
}

std::uint32_t Core::State::new_pages(const Sequence& sequence, std::uint32_t count) const {
  std::uint32_t sum = 0;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    // There may be more than that: those of guesses that did not hold.
    const auto there = static_cast<std::uint32_t>(sequence.tables[g].pages.size());
    const std::uint32_t covering = pages_covering(config.kv.groups[g], sequence.planned + count);
    sum += covering - std::min(covering, there);
  }
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
  const std::vector<TokenId>& guessed = sequence.guessed;
  RowWork work;
  work.sample = sequence.planned + count == sequence.length() + guessed.size();
  if (work.sample) work.guesses = ask_for_guesses(sequence);
  // A draft model goes on in the row's pages, so there are some for it as long as others have enough.
  const bool starts = !plan.set.empty() && plan.set.back().row == sequence.row;  // what a start may take was decided before
  const std::uint32_t most = std::max(sequence.positions_max(), sequence.planned + count) - sequence.planned,
                      ahead = std::min(count + work.guesses, most);
  const bool spare = work.guesses > 0 && !starts && new_pages(sequence, ahead) + running.size() <= book_of(sequence).available();
  const std::uint32_t end = sequence.planned + (spare ? ahead : count);
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    std::vector<PageId>& pages = sequence.tables[g].pages;
    const std::uint32_t covering = pages_covering(config.kv.groups[g], end);
    if (covering <= pages.size()) continue;
    PageGrant grant{sequence.row, static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(pages.size()), {}};
    while (pages.size() < covering) {
      pages.push_back(book_of(sequence).take());
      grant.pages.push_back(pages.back());
    }
    plan.pages.push_back(std::move(grant));
  }
  work.row = sequence.row;
  work.start = sequence.planned;
  work.count = count;
  // With a draw in flight the token is on the device only.
  work.draws = 1 + static_cast<std::uint32_t>(guessed.size());
  if (sequence.pending == 0) {
    const auto first = sequence.tokens.begin() + sequence.planned;
    work.tokens.assign(first, first + (count - static_cast<std::uint32_t>(guessed.size())));
    work.tokens.insert(work.tokens.end(), guessed.begin(), guessed.end());
  }
  const bool decode = work.draws == count && sequence.planned >= sequence.prompt_count;
  flight.work.push_back(FlightWork{&sequence, sequence.request, sequence.row, count, work.sample, work.draws, decode, work.guesses});
  sequence.starts[sequence.in_flight++] = sequence.planned;
  sequence.planned += count;
  FairQueue::charge(sequence, sequence.planned);
  if (work.sample) sequence.pending += work.draws;
  plan.work.push_back(std::move(work));
}

}  // namespace althing::scheduler
