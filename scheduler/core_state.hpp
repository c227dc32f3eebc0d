// What the core knows between two events. Private to scheduler/: the parts of the core (admission, planning, commits, membership,
// invariants) are its member functions, one file a part.
// Invariant: `running` and the fair queue together hold every sequence once; `running` ascends by turn, and "older" always means the smaller turn:
// who takes pages first, and who gives way last. Turns never change, so whatever the tenants' counters do, the oldest gets to its end.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core.hpp"
#include "scheduler/fair_queue.hpp"
#include "scheduler/length_history.hpp"
#include "scheduler/mirror_directory.hpp"
#include "scheduler/page_book.hpp"
#include "scheduler/page_needs.hpp"
#include "scheduler/sequence.hpp"

namespace althing::scheduler {

// One RowWork of a step in flight.
struct FlightWork {
  Sequence* sequence = nullptr;  // null once the request has ended: its draw is dropped
  RequestId request;
  RowIndex row;
  std::uint32_t count = 0;
  bool sample = false;
  std::uint32_t draws = 1;
  bool decode = false;        // one token that was just generated, not a prompt or a recomputation
  std::uint32_t guesses = 0;  // RowWork's
};

// A sequence whose pages a step in flight fetches from the mirror.
struct FlightRestore {
  Sequence* sequence = nullptr;  // null once the request has ended
  std::uint32_t position = 0;    // positions below it are there when the step has succeeded
  DpGroup dp_group{};
  std::vector<std::pair<MirrorSlot, PageKey>> pages;
};

// A page that must not be used again, and what it held: a lost membership may not have heard of it, and one that serves meanwhile may lack the place.
struct Forgotten {
  SlotOfGroup place;
  PageKey key;
  std::uint64_t identity = 0;  // CoreConfig::mirror_identity when it was written
};

// A step planned and not done.
struct Flight {
  StepId step;
  std::vector<FlightWork> work;   // in the order of the plan's work
  std::vector<LeftPage> release;  // pages that nobody owns but that this step may still touch
  std::vector<LeftPage> dirty;    // likewise, and a later step has to scrub them
  std::vector<LeftPage> scrub;    // this step scrubs them
  std::vector<FlightRestore> restores;
  std::vector<Forgotten> forget;
};

// How far a sequence need not be computed, because the pages are there.
struct PrefixHit {
  std::uint32_t position = 0;
  PrefixNode node;               // the last block in front of it
  std::uint32_t idle_pages = 0;  // of those it would have: nobody else has them, so they are no longer available
  std::uint32_t owned_pages = 0;
  PrefixMiss miss = PrefixMiss::disabled;
};

struct Core::State {
  explicit State(const CoreConfig& configuration)
      : config(configuration),
        needs(config.kv, config.limits.context_tokens_max - 1),
        books(config.dp_groups, new_book()),
        mirrors(config.dp_groups, MirrorDirectory(config.mirror_slots)),
        rows(config.limits.rows_max, nullptr) {}

  CoreConfig config;
  PageNeeds needs;
  std::vector<PageBook> books;           // by DP group
  std::vector<MirrorDirectory> mirrors;  // likewise
  PageKey mirror_seed;

  std::map<RequestId, std::unique_ptr<Sequence>> sequences;  // accepted and not finished
  std::set<std::pair<std::uint64_t, RequestId>> deadlines;   // of those that have one
  std::vector<Sequence*> running;
  FairQueue fair;
  LengthHistory lengths;
  std::vector<Sequence*> rows;      // [row], null: free
  std::vector<RowIndex> cleared;    // rows freed since the last plan
  std::deque<Flight> flights;       // oldest first
  std::vector<LeftPage> scrub_due;  // in quarantine: free for nobody until a step has scrubbed them

  std::vector<Forgotten> forget_due;  // the next step tells the ranks

  bool ready = false;
  bool snapshot_due = false;  // the next plan is the first of its epoch
  EpochId epoch;              // the latest membership that was ready
  EpochId lost;               // no membership up to here can come back
  StepId last_step;           // the last planned
  std::uint64_t now_ms = 0;
  std::uint64_t sequences_accepted = 0;
  std::uint64_t turns = 0;
  std::uint64_t event_count = 0;  // what was left by the same event was left at the same time
  bool draining = false;
  CoreStats totals;  // the cumulative part only

  std::uint32_t guesses_to_ask = 0;  // by the step that is being planned

  std::vector<Effect> effects;  // of the event in hand

  PageBook& book_of(const Sequence& sequence) { return books[sequence.dp_group.value]; }
  PageBook new_book() const { return PageBook(config.kv, config.limits.context_tokens_max, config.share_prefixes); }
  bool is_here(const Forgotten& f) const { return f.identity == config.mirror_identity && f.place.dp_group.value < mirrors.size(); }
  void release(const LeftPage& left) {
    if (books[left.dp_group.value].release(left.page, event_count)) scrub_due.push_back(left);
  }

  // admission.cpp
  void submit(const Submitted& event);
  Sequence& begin(const Submitted& event, std::uint32_t choice);
  std::optional<Error> refusal(const Submitted& event) const;
  std::optional<Error> trace_refusal(const Submitted& event) const;
  std::optional<Error> busy_refusal(const Submitted& event) const;
  std::uint32_t request_tokens_max() const;
  std::uint32_t completion_tokens_max(const Submitted& event) const;

  // core.cpp
  enum class Pages : std::uint8_t { clean, dirty };  // dirty: they may hold NaN
  void dispatch(const Event& event);
  void cancel(const Cancelled& event);
  void stop(const Stopped& event);
  void allow_draws(const DrawsReady& event);
  void tick(const Ticked& event);
  void become_ready(const RanksReady& event);
  void reshape(const KvShape& shape);
  void lose(EpochId dead);
  void finish(Sequence& sequence, FinishReason reason, Error error, Pages pages = Pages::clean);
  void leave_row(Sequence& sequence, Pages pages = Pages::clean);
  void give_back_pages(Sequence& sequence, Pages pages);
  void quarantine_released();

  // commit.cpp
  void commit(const StepResult& result);
  bool take_draw(Sequence& sequence, StepId step, const DrawnToken* drawn);
  void note_computed(Sequence& sequence, std::uint32_t start, std::uint32_t end);
  bool end_if_complete(Sequence& sequence);
  void slide_windows(Sequence& sequence);

  // planner.cpp
  // What is left while one step is planned.
  struct Room {
    struct Group {
      bool short_of_pages = false;  // a sequence could not get a page: younger ones use what they hold
      bool preempted = false;
    };
    explicit Room(std::size_t dp_groups) : groups(dp_groups) {}
    Group& of(const Sequence& sequence) { return groups[sequence.dp_group.value]; }

    std::uint32_t tokens = 0;            // for prefill; decodes are set aside already
    std::uint32_t guesses = 0;           // tokens that may be guessed, beside the decodes
    std::uint32_t restored = 0;          // tokens that come back from the mirror in this step
    const Sequence* expected = nullptr;  // who can start in this step and whose tenant is behind
    std::vector<Group> groups;
  };
  void plan_steps();
  bool plan_step();
  void plan_row(Sequence& sequence, Room& room, StepPlan& plan, Flight& flight);
  void allot_prefill(Room& room);
  void admit_waiting(Room& room, StepPlan& plan, Flight& flight);
  void give_row(Sequence& sequence, DpGroup group, StepPlan& plan);
  Sequence* next_to_start() const;
  struct Start {
    DpGroup group;
    std::uint32_t restored = 0;  // positions that come back from the mirror
    PrefixHit hit;               // or are there already
  };
  std::optional<Start> start_for(Sequence& sequence, const Room& room);
  std::uint32_t pages_to_start(const Sequence& sequence, std::uint32_t restored) const;
  std::uint64_t granted_in(const StepPlan& plan, DpGroup group) const;
  std::uint64_t grants_to_start(const Sequence& sequence, const Start& start, std::uint32_t tokens) const;
  bool has_pages_for(const Sequence& sequence, DpGroup group, const PrefixHit& hit) const;
  std::uint64_t pages_wanted(const Sequence& sequence, DpGroup group, const PrefixHit& hit) const;
  std::uint32_t pages_soon(DpGroup group) const;
  std::uint32_t new_pages(const Sequence& sequence, std::uint32_t count) const;
  std::uint32_t count_fitting(const Sequence& sequence, std::uint32_t wanted, std::uint32_t pages) const;
  void schedule(Sequence& sequence, std::uint32_t count, StepPlan& plan, Flight& flight);

  // forecast.cpp
  std::uint64_t pages_ahead(const Sequence& next, DpGroup group, const PrefixHit& hit) const;

  // speculation.cpp
  bool may_be_guessed(const Sequence& sequence) const;
  bool may_speculate(const Sequence& sequence) const;
  std::vector<TokenId> guesses(Sequence& sequence, const Room& room);
  bool waits_to_guess(Sequence& sequence);
  std::uint32_t room_for_guesses(std::uint32_t tokens_left) const;
  // Pages may be there for so many tokens more than are computed or planned.
  std::uint32_t pages_ahead_tokens() const { return (config.limits.draft_model ? 2 : 1) * config.limits.speculation_tokens_max; }
  std::uint32_t ask_for_guesses(Sequence& sequence);
  void take_drafts(const Flight& flight, const std::vector<RowGuesses>& guesses);
  void take_verified(Sequence& sequence, StepId step, std::span<const DrawnToken* const> drawn);

  // preemption.cpp
  void make_room(const Sequence& sequence, Room& room);
  void make_way(Room& room);
  Sequence* row_over_share(const Sequence& next) const;
  void free_pages_over_share(const Sequence& next, Room& room);
  std::vector<Sequence*> pages_over_share(const Sequence& next, DpGroup group, std::uint64_t missing) const;
  std::map<const Tenant*, std::uint64_t> pages_held(DpGroup group) const;
  void preempt(Sequence& sequence, const Sequence& by, PreemptionCause cause);

  // prefix.cpp
  PrefixHit prefix_hit(const Sequence& sequence, DpGroup group) const;
  std::uint32_t whole_windows(const std::vector<const PrefixIndex::Node*>& path, const PrefixIndex::Shape& shape) const;
  bool waits_for_choice(const Sequence& sequence) const;
  void go_on_from(Sequence& sequence, const PrefixHit& hit, StepPlan& plan);
  void note_start(Sequence& sequence, const PrefixHit& hit);
  void enter_blocks(Sequence& sequence, std::uint32_t end);
  bool enter_block(Sequence& sequence, PageBook& book);
  void prove_blocks(Sequence& sequence);
  void leave_trail(Sequence& sequence);

  // mirror.cpp
  bool mirrors_pages() const { return config.mirror_slots > 0; }
  void adopt_mirror(const RanksReady& event);
  void extend_keys(Sequence& sequence, std::uint32_t tokens);
  std::uint32_t restorable(Sequence& sequence, DpGroup group);
  void restore(Sequence& sequence, std::uint32_t position, StepPlan& plan, Flight& flight);
  void finish_restores(Flight& flight, const std::vector<SlotOfGroup>& unrestored);
  void offer_pages(Sequence& sequence, StepPlan& plan);
  void offer_page(Sequence& sequence, std::uint32_t group, std::uint32_t page, StepPlan& plan);
  void claim_restorable(Sequence& sequence);
  void claim_up_to(Sequence& sequence, DpGroup group, std::uint32_t position);
  std::uint32_t first_needed(std::uint32_t group, std::uint32_t position) const;
  void unclaim_all(Sequence& sequence);
  void forget_pages_of(const Sequence& sequence);
  void forget_page(SlotOfGroup place);

  // invariants.cpp
  std::string check() const;
  std::string check_pages() const;
  std::string check_places() const;
  std::string check_sequence(const Sequence& sequence) const;
  std::string check_flights() const;
  std::string check_mirrors() const;
};

}  // namespace althing::scheduler
