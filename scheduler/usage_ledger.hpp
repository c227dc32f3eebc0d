// What each request has used: tokens computed and computed again, its share of the ranks' time, and KV pages held over time. A pure book: plans, ends
// of steps, held pages and the clock come from outside, so the same calls give the same tallies.
// Invariant: the ranks' time of every step that ended is shared out to the nanosecond over those that it computed something for; a step that computed
// for nobody is in unattributed_ns(). A request's tally is closed when all of its choices have ended and no step in flight computes for them: a step
// that was planned before the end was known is still its doing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/core.hpp"
#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::scheduler {

// One request, all its choices together.
struct UsageTally {
  std::uint32_t choices = 0;
  std::uint32_t prompt_tokens = 0;      // of the prompt, once
  std::uint64_t completion_tokens = 0;  // those that another core drew before it died too
  std::uint64_t computed_tokens = 0;    // that went through the layers, in steps that ended
  std::uint64_t recomputed_tokens = 0;  // of these, once more: their KV had been given up or lost
  std::uint64_t restored_tokens = 0;    // that came back from the mirror instead
  std::uint64_t cached_tokens = 0;      // or were there already
  std::uint64_t device_ns = 0;          // of all ranks together
  double kv_byte_seconds = 0;           // over all ranks that hold a shard
  std::uint32_t preemptions = 0;
  bool taken_over = false;                   // a core that died had begun it: what was used under that one is not in here
  FinishReason reason = FinishReason::stop;  // the gravest of the choices' …
  ErrorCode code = ErrorCode::internal;      // … that came with it: of error and cancelled
};

struct ClosedTally {
  RequestId request;
  UsageTally tally;
  bool accepted = false;  // any of it; a request that was refused used nothing
};

class UsageLedger {
 public:
  // A sequence of `request` is about to be submitted. All sequences of a request are opened before the first of them is submitted.
  void open(RequestId sequence, RequestId request, std::uint32_t prompt_tokens, bool taken_over);
  void refused(RequestId sequence);  // never accepted
  void finished(const Finished& end);

  // In the order in which plans go out.
  void planned(const StepPlan& plan);
  // The core has accepted the step's result. `device_ns` is its duration times the ranks that took part.
  void done(StepId step, std::uint64_t device_ns);
  // No step in flight will end.
  void lost();

  // What is held from `now_us` on, at so many bytes a page over all ranks that have a shard of it. What is not named is held no more. After an event
  // and before the ends that it brought, so that these find everything accounted. REQUIRES: now_us does not go back.
  void hold(std::vector<HeldPages> held, std::uint64_t page_bytes, std::uint64_t now_us);

  // Tallies that were closed since the last call.
  std::vector<ClosedTally> take_closed();

  std::uint64_t device_ns() const { return device_ns_; }              // of all steps that ended
  std::uint64_t unattributed_ns() const { return unattributed_ns_; }  // of these, of steps without a token: they scrub or restore
  std::size_t open_requests() const { return requests_.size(); }

 private:
  struct Request {
    UsageTally tally;
    std::uint32_t open = 0;  // sequences that are not over
    bool accepted = false;
  };
  // Nodes of maps: what points to them stays good until they are erased. A sequence is erased when no step in flight points to it any more.
  struct Sequence {
    RequestId id, request;
    Request* account = nullptr;
    std::optional<RowIndex> row;
    std::uint32_t computed_most = 0;  // positions that were computed once
    bool starts = false;              // has a row, and no work on it yet
    bool kept = false;                // and it begins with pages of others
    bool ended = false;
    std::uint32_t in_flight = 0;  // steps in flight that compute for it
  };
  struct Work {
    Sequence* sequence = nullptr;  // nullptr: nobody whom we know
    std::uint32_t start = 0;
    std::uint32_t count = 0;
  };
  struct Held {
    std::uint32_t pages = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t since_us = 0;
  };

  void computed(const Work& work, std::uint64_t share_ns);
  void charge(RequestId sequence, const Held& held, std::uint64_t now_us);
  void close_if_over(Sequence& sequence);
  void erase(Sequence& sequence);
  void set_row(RowIndex row, Sequence* sequence);

  std::map<RequestId, Request> requests_;
  std::map<RequestId, Sequence> sequences_;
  std::vector<Sequence*> rows_;                   // by row; nullptr: nobody whom we know
  std::map<StepId, std::vector<Work>> steps_;     // in flight
  std::vector<std::pair<RequestId, Held>> held_;  // ascending
  std::uint64_t device_ns_ = 0, unattributed_ns_ = 0;
  std::vector<ClosedTally> closed_;
};

}  // namespace althing::scheduler
