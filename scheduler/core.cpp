// The core's front door: which event goes where, the ends of requests, and changes of membership.
// Invariant: every accepted request passes through finish() exactly once, and every event ends with an attempt to plan, so that there is
// never work that may be done, ranks and a free slot without a step in flight.
#include "scheduler/core.hpp"

#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

constexpr std::uint32_t context_tokens_bound = 1u << 24;  // the table of page needs has an entry a position
constexpr std::uint32_t dp_groups_max = 64;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
// Clang 14 does not deduce aggregates by itself.
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

Error refused(const char* field, const std::string& message) { return Error{ErrorCode::invalid_argument, message, field}; }

Status check_config(const CoreConfig& config) {
  const Limits& limits = config.limits;
  if (auto status = check_limits(limits); !status) return status;
  if (config.vocabulary == 0) return refused("vocabulary", "the vocabulary is 0; it must be the model's number of token ids");
  if (limits.context_tokens_max < 2 || limits.context_tokens_max > context_tokens_bound)
    return refused("context_tokens_max", "context_tokens_max is " + std::to_string(limits.context_tokens_max) + "; use 2 to " +
                                             std::to_string(context_tokens_bound) + " (a prompt token and a completion token at least)");
  if (limits.completion_tokens_max == 0) return refused("completion_tokens_max", "completion_tokens_max is 0; use 1 or more");
  if (config.dp_groups == 0 || config.dp_groups > dp_groups_max)
    return refused("dp_groups", "dp_groups is " + std::to_string(config.dp_groups) + "; use 1 to " + std::to_string(dp_groups_max));
  if (config.kv.groups.empty()) return refused("groups", "the KV layout has no group of layers; it needs 1 or more");
  for (std::size_t g = 0; g < config.kv.groups.size(); ++g)
    if (config.kv.groups[g].tokens_per_page == 0)
      return refused("tokens_per_page", "group " + std::to_string(g) + " of the KV layout holds 0 tokens a page; it must hold 1 or more");
  if (config.kv.page_count < config.kv.groups.size())
    return Error{ErrorCode::too_large,
                 "one token needs a page in each of the " + std::to_string(config.kv.groups.size()) + " KV groups, and the pool has " +
                     std::to_string(config.kv.page_count) + " pages; give the KV cache more memory",
                 "page_count"};
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<Core>> Core::create(const CoreConfig& config) {
  if (auto status = check_config(config); !status) return status.error();
  return std::unique_ptr<Core>(new Core(std::make_unique<State>(config)));
}

Core::Core(std::unique_ptr<State> state) : state_(std::move(state)) {}
Core::~Core() = default;

std::span<const Effect> Core::on(const Event& event) {
  state_->effects.clear();
  ++state_->event_count;
  state_->dispatch(event);
  state_->plan_steps();
  return state_->effects;
}

std::vector<Core::PoolUse> Core::pools() const {
  std::vector<PoolUse> pools;
  for (const PageBook& book : state_->books) pools.push_back({book.used(), book.total(), book.cached()});
  return pools;
}

std::vector<HeldPages> Core::held_pages() const {
  std::vector<HeldPages> held;
  held.reserve(state_->running.size());
  for (const Sequence* sequence : state_->running) held.push_back({sequence->request, sequence->held()});
  return held;
}

std::uint64_t Core::page_changes() const {
  std::uint64_t changes = 0;
  for (const PageBook& book : state_->books) changes += book.changes();
  return changes;
}

CoreStats Core::stats() const {
  const State& s = *state_;
  CoreStats stats = s.totals;
  stats.running = static_cast<std::uint32_t>(s.running.size());
  stats.waiting = static_cast<std::uint32_t>(s.fair.waiting());
  stats.tenants = static_cast<std::uint32_t>(s.fair.active());
  for (const PageBook& book : s.books) {
    stats.pages_used += book.used();
    stats.pages_total += book.total();
    stats.pages_cached += book.cached();
    stats.prefix_pages_evicted += book.evicted();
  }
  for (const MirrorDirectory& mirror : s.mirrors) {
    stats.mirror_slots_used += mirror.used();
    stats.mirror_slots_total += mirror.total();
  }
  stats.steps_in_flight = static_cast<std::uint32_t>(s.flights.size());
  stats.ready = s.ready;
  stats.draining = s.draining;
  return stats;
}

std::uint32_t Core::request_tokens_max() const { return state_->request_tokens_max(); }

std::string Core::check_invariants() const { return state_->check(); }

void Core::State::dispatch(const Event& event) {
  std::visit(Overloaded{[this](const Submitted& e) { submit(e); }, [this](const Cancelled& e) { cancel(e); },
                        [this](const StepDone& e) { commit(e.result); }, [this](const RanksReady& e) { become_ready(e); },
                        [this](const RanksLost& e) { lose(e.epoch); }, [this](const Ticked& e) { tick(e); },
                        [this](const DrainStarted&) { draining = true; }, [this](const Stopped& e) { stop(e); },
                        [this](const DrawsReady& e) { allow_draws(e); }},
             event);
}

void Core::State::cancel(const Cancelled& event) {
  const auto found = sequences.find(event.request);
  if (found != sequences.end()) finish(*found->second, FinishReason::cancelled, event.error);
}

// What was drawn behind the end is taken back before anybody counts it. It may have ended by itself meanwhile: then its reader has closed it already.
void Core::State::stop(const Stopped& event) {
  const auto found = sequences.find(event.request);
  if (found == sequences.end()) return;
  Sequence& sequence = *found->second;
  sequence.tokens.resize(sequence.prompt_count + std::min(event.completion_tokens, sequence.completion_count()));
  finish(sequence, FinishReason::stop, Error{});
}

// It may have ended meanwhile, and its reader not have heard.
void Core::State::allow_draws(const DrawsReady& event) {
  const auto found = sequences.find(event.request);
  if (found != sequences.end()) found->second->draws_ready = std::max(found->second->draws_ready, event.until);
}

void Core::State::tick(const Ticked& event) {
  if (event.now_ms <= now_ms) return;
  now_ms = event.now_ms;
  while (!deadlines.empty() && deadlines.begin()->first <= now_ms) {
    Sequence& sequence = *sequences.at(deadlines.begin()->second);  // finish() takes it out
    finish(sequence, FinishReason::error,
           Error{ErrorCode::deadline,
                 "the deadline passed at " + std::to_string(sequence.deadline_ms) + " ms and it is " + std::to_string(now_ms) + " ms, after " +
                     std::to_string(sequence.completion_count()) + " completion tokens; allow more time or ask for fewer tokens",
                 "deadline_ms"});
  }
}

// A membership that replaces another without a RanksLost between voids the steps of the old one all the same.
void Core::State::become_ready(const RanksReady& event) {
  if (event.epoch <= epoch || event.epoch <= lost) return;
  lose(epoch);
  epoch = event.epoch;
  if (event.shape && (event.shape->dp_groups != config.dp_groups || event.shape->layout != config.kv ||
                      event.shape->mirror_slots != config.mirror_slots || event.shape->mirror_identity != config.mirror_identity)) {
    CoreConfig next = config;
    next.dp_groups = event.shape->dp_groups;
    next.kv = event.shape->layout;
    next.mirror_slots = event.shape->mirror_slots;
    next.mirror_identity = event.shape->mirror_identity;
    // Nothing could ever be planned in such pools. It counts as lost, so that nobody is told of a membership that serves.
    if (!check_config(next)) {
      lost = epoch;
      return;
    }
    reshape(*event.shape);
  }
  if (mirrors_pages()) adopt_mirror(event);
  ready = true;
  snapshot_due = true;
}

// Other pools, all of them empty: ranks of another shape hold no KV that was written before, and so no page that must be scrubbed.
// REQUIRES: nothing runs and nothing is in flight; the shape passes check_config.
void Core::State::reshape(const KvShape& shape) {
  const std::uint32_t tokens_max_before = request_tokens_max();
  config.dp_groups = shape.dp_groups;
  config.kv = shape.layout;
  needs = PageNeeds(config.kv, config.limits.context_tokens_max - 1);
  config.mirror_slots = shape.mirror_slots;
  config.mirror_identity = shape.mirror_identity;
  for (const PageBook& book : books) totals.prefix_pages_evicted += book.evicted();
  books.assign(config.dp_groups, new_book());
  mirrors.assign(config.dp_groups, MirrorDirectory(config.mirror_slots));
  scrub_due.clear();
  for (const auto& [request, sequence] : sequences) {
    sequence->tables.assign(config.kv.groups.size(), PageTable{});
    sequence->dp_group = DpGroup{};
    sequence->mirror.assign(mirrors_pages() ? config.kv.groups.size() : 0, MirrorTable{});
    sequence->mirror_group = DpGroup{};
    if (mirrors_pages()) sequence->chain = TokenChain(mirror_seed, config.mirror_identity);
  }
  for (auto next = sequences.begin(); next != sequences.end();) {
    Sequence& sequence = *next++->second;  // finish() erases it
    const std::uint64_t tokens = std::uint64_t{sequence.prompt_count} + sequence.sampling.completion_tokens_max;
    if (tokens <= request_tokens_max()) continue;
    finish(sequence, FinishReason::error,
           Error{ErrorCode::too_large,
                 "ranks were lost, and those that are left have room for " + std::to_string(request_tokens_max()) +
                     " tokens of one request, where it was " + std::to_string(tokens_max_before) + " before; prompt and completion need " +
                     std::to_string(tokens) + "; submit it again later, or ask for fewer tokens",
                 "prompt"});
  }
}

void Core::State::lose(EpochId dead) {
  lost = std::max(lost, dead);
  if (!ready || dead < epoch) return;
  ready = false;
  for (PageBook& book : books) book.clear();  // a rank's pages may be gone, or another's be in its place
  for (const Flight& flight : flights) {
    for (const auto* pages : {&flight.release, &flight.dirty})
      for (const LeftPage& left : *pages) release(left);
    scrub_due.insert(scrub_due.end(), flight.scrub.begin(), flight.scrub.end());
    forget_due.insert(forget_due.end(), flight.forget.begin(), flight.forget.end());
  }
  flights.clear();
  // A waiting sequence may have been preempted with a draw in flight: that draw will not come either.
  for (const auto& [request, sequence] : sequences) {
    sequence->pending = 0;
    sequence->in_flight = 0;
    sequence->guessed.clear();
    sequence->asked = false;
  }
  while (!running.empty()) {
    Sequence& sequence = *running.back();
    leave_row(sequence);
    fair.wait_again(sequence);
  }
  cleared.clear();  // the next plan is a snapshot
}

void Core::State::finish(Sequence& sequence, FinishReason reason, Error error, Pages pages) {
  Usage usage;
  usage.prompt_tokens = sequence.prompt_count;
  usage.completion_tokens = sequence.completion_count();
  usage.preemptions = sequence.preemptions;
  usage.cached_tokens = sequence.cached_tokens;
  usage.miss = sequence.miss;
  effects.emplace_back(Finished{sequence.request, reason, usage, std::move(error)});
  if (reason == FinishReason::stop || reason == FinishReason::length) lengths.note(sequence.completion_count());
  if (sequence.running) leave_row(sequence, pages);
  fair.leave(sequence, now_ms);
  if (sequence.deadline_ms != 0) deadlines.erase({sequence.deadline_ms, sequence.request});
  for (Flight& flight : flights) {
    for (FlightWork& work : flight.work)
      if (work.sequence == &sequence) work.sequence = nullptr;
    for (FlightRestore& restored : flight.restores)
      if (restored.sequence == &sequence) restored.sequence = nullptr;
  }
  if (pages == Pages::dirty) forget_pages_of(sequence);
  unclaim_all(sequence);
  const RequestId request = sequence.request;
  sequences.erase(request);
}

// Takes a running sequence off its row and its pages; the tokens stay.
void Core::State::leave_row(Sequence& sequence, Pages pages) {
  if (pages == Pages::clean) leave_trail(sequence);
  give_back_pages(sequence, pages);
  sequence.trail = {};
  rows[sequence.row.value] = nullptr;
  cleared.push_back(sequence.row);
  running.erase(std::find(running.begin(), running.end(), &sequence));
  sequence.running = false;
  sequence.planned = 0;
  sequence.restoring = false;
  sequence.may_restore = mirrors_pages();
  for (MirrorTable& table : sequence.mirror) table.offered = 0;
}

// Pages that a step in flight may still write or read go back when the last such step is done, not before. Where others have them too, that is when
// they are gone on with: nobody else gets them.
void Core::State::give_back_pages(Sequence& sequence, Pages pages) {
  Flight* last = nullptr;
  if (sequence.in_flight > 0)
    for (Flight& flight : flights) {
      for (const FlightWork& work : flight.work)
        if (work.sequence == &sequence) last = &flight;
      for (const FlightRestore& restored : flight.restores)
        if (restored.sequence == &sequence) last = &flight;
    }
  for (PageTable& table : sequence.tables) {
    for (std::size_t i = table.released; i < table.pages.size(); ++i) {
      const LeftPage left{sequence.dp_group, table.pages[i]};
      if (pages == Pages::dirty) book_of(sequence).taint(left.page);
      if (last != nullptr)
        (pages == Pages::dirty ? last->dirty : last->release).push_back(left);
      else
        release(left);
    }
    table = PageTable{};
  }
}

// A sequence that holds no pages any more turned out to have written NaN. Which of the pages on their way back were its own is not known now, and
// scrubbing one too many costs little.
void Core::State::quarantine_released() {
  for (Flight& flight : flights) {
    for (const LeftPage& left : flight.release) books[left.dp_group.value].taint(left.page);
    flight.dirty.insert(flight.dirty.end(), flight.release.begin(), flight.release.end());
    flight.release.clear();
  }
}

}  // namespace althing::scheduler
