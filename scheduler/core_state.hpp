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
#include <vector>

#include "scheduler/core.hpp"
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

// A step planned and not done.
struct Flight {
  StepId step;
  std::vector<FlightWork> work;  // in the order of the plan's work
  std::vector<PageId> release;   // pages that nobody owns but that this step may still touch
};

struct Core::State {
  explicit State(const CoreConfig& configuration)
      : config(configuration),
        needs(config.kv, config.limits.context_tokens_max - 1),
        pool(config.kv.page_count),
        rows(config.limits.rows_max, nullptr) {}

  CoreConfig config;
  PageNeeds needs;
  PagePool pool;

  std::map<RequestId, std::unique_ptr<Sequence>> sequences;  // accepted and not finished
  std::vector<Sequence*> running;
  std::deque<Sequence*> waiting;
  std::vector<Sequence*> rows;    // [row], null: free
  std::vector<RowIndex> cleared;  // rows freed since the last plan
  std::deque<Flight> flights;     // oldest first

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

  // admission.cpp
  void submit(const Submitted& event);
  std::optional<Error> refusal(const Submitted& event) const;
  std::uint32_t request_tokens_max() const;
  std::uint32_t completion_tokens_max(const Submitted& event) const;

  // core.cpp
  void dispatch(const Event& event);
  void cancel(const Cancelled& event);
  void tick(const Ticked& event);
  void become_ready(EpochId next);
  void lose(EpochId dead);
  void finish(Sequence& sequence, FinishReason reason, Error error);
  void leave_row(Sequence& sequence);
  void wait_again(Sequence& sequence);
  void give_back_pages(Sequence& sequence);

  // commit.cpp
  void commit(const StepResult& result);
  void take_draw(Sequence& sequence, StepId step, const DrawnToken* drawn);
  void slide_windows(Sequence& sequence);

  // planner.cpp
  struct Room;
  void plan_steps();
  bool plan_step();
  void plan_row(Sequence& sequence, Room& room, StepPlan& plan, Flight& flight);
  void admit_waiting(Room& room, StepPlan& plan, Flight& flight);
  bool has_pages_for(const Sequence& sequence) const;
  void make_room(const Sequence& sequence, Room& room);
  void preempt(Sequence& sequence);
  std::uint32_t pages_soon() const;
  std::uint32_t new_pages(const Sequence& sequence, std::uint32_t count) const;
  std::uint32_t count_fitting(const Sequence& sequence, std::uint32_t wanted, std::uint32_t pages) const;
  void schedule(Sequence& sequence, std::uint32_t count, StepPlan& plan, Flight& flight);

  // invariants.cpp
  std::string check() const;
  std::string check_pages() const;
  std::string check_places() const;
  std::string check_sequence(const Sequence& sequence) const;
  std::string check_flights() const;
};

}  // namespace althing::scheduler
