// What the core knows between two events. Private to scheduler/: the parts of the core (admission, planning, commits, membership,
// invariants) are its member functions, one file a part.
// Invariant: running and waiting together hold every sequence once, both ascending by number (order of acceptance), so "older" always means
// the same thing: who is served first, and who gives way last.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core.hpp"
#include "scheduler/mirror_directory.hpp"
#include "scheduler/page_needs.hpp"
#include "scheduler/page_pool.hpp"
#include "scheduler/sequence.hpp"

namespace althing::scheduler {

// One RowWork of a step in flight.
struct FlightWork {
  Sequence* sequence = nullptr;  // null once the request has ended: its draw is dropped
  RequestId request;
  RowIndex row;
  std::uint32_t count = 0;
  bool sample = false;
  bool decode = false;  // one token that was just generated, not a prompt or a recomputation
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

struct Core::State {
  explicit State(const CoreConfig& configuration)
      : config(configuration),
        needs(config.kv, config.limits.context_tokens_max - 1),
        pools(config.dp_groups, PagePool(config.kv.page_count)),
        mirrors(config.dp_groups, MirrorDirectory(config.mirror_slots)),
        rows(config.limits.rows_max, nullptr) {}

  CoreConfig config;
  PageNeeds needs;
  std::vector<PagePool> pools;           // by DP group
  std::vector<MirrorDirectory> mirrors;  // likewise
  PageKey mirror_seed;

  std::map<RequestId, std::unique_ptr<Sequence>> sequences;  // accepted and not finished
  std::vector<Sequence*> running;
  std::deque<Sequence*> waiting;
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
  bool draining = false;
  CoreStats totals;  // the cumulative part only

  std::vector<Effect> effects;  // of the event in hand

  PagePool& pool_of(const Sequence& sequence) { return pools[sequence.dp_group.value]; }
  bool is_here(const Forgotten& f) const { return f.identity == config.mirror_identity && f.place.dp_group.value < mirrors.size(); }
  void release(const LeftPage& left) { pools[left.dp_group.value].release(left.page); }

  // admission.cpp
  void submit(const Submitted& event);
  Sequence& begin(const Submitted& event, std::uint32_t choice);
  std::optional<Error> refusal(const Submitted& event) const;
  std::optional<Error> trace_refusal(const Submitted& event) const;
  std::uint32_t request_tokens_max() const;
  std::uint32_t completion_tokens_max(const Submitted& event) const;

  // core.cpp
  enum class Pages : std::uint8_t { clean, dirty };  // dirty: they may hold NaN
  void dispatch(const Event& event);
  void cancel(const Cancelled& event);
  void tick(const Ticked& event);
  void become_ready(const RanksReady& event);
  void reshape(const KvShape& shape);
  void lose(EpochId dead);
  void finish(Sequence& sequence, FinishReason reason, Error error, Pages pages = Pages::clean);
  void leave_row(Sequence& sequence, Pages pages = Pages::clean);
  void wait_again(Sequence& sequence);
  void give_back_pages(Sequence& sequence, Pages pages);
  void quarantine_released();

  // commit.cpp
  void commit(const StepResult& result);
  void take_draw(Sequence& sequence, StepId step, const DrawnToken* drawn);
  void end_if_complete(Sequence& sequence);
  void slide_windows(Sequence& sequence);

  // planner.cpp
  struct Room;
  void plan_steps();
  bool plan_step();
  void plan_row(Sequence& sequence, Room& room, StepPlan& plan, Flight& flight);
  void admit_waiting(Room& room, StepPlan& plan, Flight& flight);
  struct Start {
    DpGroup group;
    std::uint32_t restored = 0;  // positions that come back from the mirror
  };
  std::optional<Start> start_for(Sequence& sequence, const Room& room);
  std::uint32_t pages_to_start(const Sequence& sequence, std::uint32_t restored) const;
  bool has_pages_for(const Sequence& sequence, DpGroup group) const;
  void make_room(const Sequence& sequence, Room& room);
  void preempt(Sequence& sequence);
  std::uint32_t pages_soon(DpGroup group) const;
  std::uint32_t new_pages(const Sequence& sequence, std::uint32_t count) const;
  std::uint32_t count_fitting(const Sequence& sequence, std::uint32_t wanted, std::uint32_t pages) const;
  void schedule(Sequence& sequence, std::uint32_t count, StepPlan& plan, Flight& flight);

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
