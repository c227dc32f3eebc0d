// The scheduler core: a pure state machine that turns events into effects. It has no thread, clock, IO, log or random source, never
// throws for an event (allocation failure apart) and never blocks, so a journal of its events replays to the same effects.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::scheduler {

struct CoreConfig {
  Limits limits;
  KvLayout kv;
  std::uint32_t vocabulary = 0;       // token ids of prompts must be below it
  std::uint32_t dp_groups = 1;        // each has a pool of kv.page_count pages, and sequences of its own
  std::uint32_t mirror_slots = 0;     // pages that the mirror of each DP group has room for; 0: there is none
  std::uint64_t mirror_identity = 0;  // whatever KV bits depend on besides tokens: model, build, layout, backend
  bool share_prefixes = false;        // pages outlive their request, for others that begin alike
};

// Cheap to take after any event; for metrics and readiness.
struct CoreStats {
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint32_t tenants = 0;     // with requests
  std::uint32_t pages_used = 0;  // in all groups' pools
  std::uint32_t pages_total = 0;
  std::uint32_t pages_cached = 0;  // of those that are not used: they hold beginnings that may be asked for again
  std::uint32_t steps_in_flight = 0;
  std::uint64_t steps_done = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t preemptions_for_share = 0;  // of these: another tenant had less than its share
  std::uint64_t prompt_tokens = 0;          // computed, recomputation included
  std::uint64_t completion_tokens = 0;
  // The mirror. Cumulative, but for the first two.
  std::uint32_t mirror_slots_used = 0;  // in all groups' mirrors
  std::uint32_t mirror_slots_total = 0;
  std::uint64_t pages_mirrored = 0;    // copies ordered
  std::uint64_t pages_unmirrored = 0;  // no copy ordered, because the mirror was full of pages that are needed
  std::uint64_t pages_restored = 0;
  std::uint64_t pages_unrestored = 0;   // some rank did not have them, or not whole
  std::uint64_t tokens_restored = 0;    // that need not be computed again
  std::uint64_t tokens_recomputed = 0;  // that had been computed before, and were lost
  // Shared prefixes, of requests that were given a row for the first time. Cumulative.
  std::uint64_t prefix_hit_tokens = 0;                           // of their prompts, that need not be computed
  std::uint64_t prefix_miss_tokens = 0;                          // and the others
  std::array<std::uint64_t, prefix_miss_count> prefix_misses{};  // requests by why they missed what they did
  std::uint64_t prefix_pages_evicted = 0;
  // Guesses. Cumulative.
  std::uint64_t guessed_tokens = 0;  // that were verified
  std::uint64_t guessed_right = 0;   // of these: the model drew the same, so they saved a step each
  std::uint64_t drafted_tokens = 0;  // of guessed_tokens: those of the draft model …
  std::uint64_t drafted_right = 0;   // … and of guessed_right
  bool ready = false;                // a complete membership exists
  bool draining = false;
};

// KV pages that one running sequence has on every rank of its DP group. Pages that are on their way back are nobody's.
struct HeldPages {
  RequestId sequence;
  std::uint32_t pages = 0;

  friend bool operator==(const HeldPages&, const HeldPages&) = default;
};

class Core {
 public:
  // Refuses limits or a layout whose relations do not hold, naming both numbers.
  static Result<std::unique_ptr<Core>> create(const CoreConfig& config);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // The returned span is valid until the next call.
  std::span<const Effect> on(const Event& event);

  CoreStats stats() const;

  // The page pool of each DP group.
  struct PoolUse {
    std::uint32_t used = 0;
    std::uint32_t total = 0;
    std::uint32_t cached = 0;  // neither used nor empty
  };
  std::vector<PoolUse> pools() const;

  // What each running sequence holds, in order of their first rows.
  std::vector<HeldPages> held_pages() const;
  // Grows whenever that changes, but begins anew with the pools of another membership.
  std::uint64_t page_changes() const;

  // The most prompt + completion tokens that a request may need (limits and one group's pool together).
  std::uint32_t request_tokens_max() const;

  // Empty when everything adds up; else the first invariant that is broken, with numbers. For tests and debug builds.
  std::string check_invariants() const;

 private:
  struct State;
  explicit Core(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::scheduler
