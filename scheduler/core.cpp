// The core's front door: which event goes where, the ends of requests, and changes of membership.
// Invariant: every accepted request passes through finish() exactly once, and every event ends with an attempt to plan, so that there is
// never work, ranks and a free slot without a step in flight.
#include "scheduler/core.hpp"

#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

constexpr std::uint32_t context_tokens_bound = 1u << 24;  // the table of page needs has an entry a position

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
  state_->dispatch(event);
  state_->plan_steps();
  return state_->effects;
}

CoreStats Core::stats() const {
  const State& s = *state_;
  CoreStats stats = s.totals;
  stats.running = static_cast<std::uint32_t>(s.running.size());
  stats.waiting = static_cast<std::uint32_t>(s.waiting.size());
  stats.pages_used = s.pool.used();
  stats.pages_total = s.pool.total();
  stats.steps_in_flight = static_cast<std::uint32_t>(s.flights.size());
  stats.ready = s.ready;
  stats.draining = s.draining;
  return stats;
}

std::uint32_t Core::request_tokens_max() const { return state_->request_tokens_max(); }

std::string Core::check_invariants() const { return state_->check(); }

void Core::State::dispatch(const Event& event) {
  std::visit(Overloaded{[this](const Submitted& e) { submit(e); }, [this](const Cancelled& e) { cancel(e); },
                        [this](const StepDone& e) { commit(e.result); }, [this](const RanksReady& e) { become_ready(e.epoch); },
                        [this](const RanksLost& e) { lose(e.epoch); }, [this](const Ticked& e) { tick(e); },
                        [this](const DrainStarted&) { draining = true; }},
             event);
}

void Core::State::cancel(const Cancelled& event) {
  const auto found = sequences.find(event.request);
  if (found != sequences.end()) finish(*found->second, FinishReason::cancelled, event.error);
}

void Core::State::tick(const Ticked& event) {
  if (event.now_ms <= now_ms) return;
  now_ms = event.now_ms;
  for (auto next = sequences.begin(); next != sequences.end();) {
    Sequence& sequence = *next++->second;  // finish() erases it
    if (sequence.deadline_ms == 0 || sequence.deadline_ms > now_ms) continue;
    finish(sequence, FinishReason::error,
           Error{ErrorCode::deadline,
                 "the deadline passed at " + std::to_string(sequence.deadline_ms) + " ms and it is " + std::to_string(now_ms) + " ms, after " +
                     std::to_string(sequence.completion_count()) + " completion tokens; allow more time or ask for fewer tokens",
                 "deadline_ms"});
  }
}

// A membership that replaces another without a RanksLost between voids the steps of the old one all the same.
void Core::State::become_ready(EpochId next) {
  if (next <= epoch || next <= lost) return;
  lose(epoch);
  epoch = next;
  ready = true;
  snapshot_due = true;
}

void Core::State::lose(EpochId dead) {
  lost = std::max(lost, dead);
  if (!ready || dead < epoch) return;
  ready = false;
  for (const Flight& flight : flights)
    for (const PageId page : flight.release) pool.release(page);
  flights.clear();
  // A waiting sequence may have been preempted with a draw in flight: that draw will not come either.
  for (const auto& [request, sequence] : sequences) {
    sequence->pending = 0;
    sequence->in_flight = 0;
  }
  while (!running.empty()) {
    Sequence& sequence = *running.back();
    leave_row(sequence);
    wait_again(sequence);
  }
  cleared.clear();  // the next plan is a snapshot
}

void Core::State::finish(Sequence& sequence, FinishReason reason, Error error) {
  Usage usage;
  usage.prompt_tokens = sequence.prompt_count;
  usage.completion_tokens = sequence.completion_count();
  usage.preemptions = sequence.preemptions;
  effects.emplace_back(Finished{sequence.request, reason, usage, std::move(error)});
  if (sequence.running)
    leave_row(sequence);
  else
    waiting.erase(std::find(waiting.begin(), waiting.end(), &sequence));
  for (Flight& flight : flights)
    for (FlightWork& work : flight.work)
      if (work.sequence == &sequence) work.sequence = nullptr;
  const RequestId request = sequence.request;
  sequences.erase(request);
}

// Takes a running sequence off its row and its pages; the tokens stay.
void Core::State::leave_row(Sequence& sequence) {
  give_back_pages(sequence);
  rows[sequence.row.value] = nullptr;
  cleared.push_back(sequence.row);
  running.erase(std::find(running.begin(), running.end(), &sequence));
  sequence.running = false;
  sequence.planned = 0;
}

// It was accepted before nearly all that wait, so its place is in front or close to it.
void Core::State::wait_again(Sequence& sequence) {
  const auto older = [](const Sequence* a, const Sequence* b) { return a->number < b->number; };
  waiting.insert(std::lower_bound(waiting.begin(), waiting.end(), &sequence, older), &sequence);
}

// Pages that a step in flight may still write or read go back when the last such step is done, not before.
void Core::State::give_back_pages(Sequence& sequence) {
  Flight* last = nullptr;
  if (sequence.in_flight > 0)
    for (Flight& flight : flights)
      for (const FlightWork& work : flight.work)
        if (work.sequence == &sequence) last = &flight;
  for (PageTable& table : sequence.tables) {
    for (std::size_t i = table.released; i < table.pages.size(); ++i) {
      if (last != nullptr)
        last->release.push_back(table.pages[i]);
      else
        pool.release(table.pages[i]);
    }
    table = PageTable{};
  }
}

}  // namespace althing::scheduler
