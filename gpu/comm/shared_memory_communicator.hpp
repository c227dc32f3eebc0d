// The communicator between CPU ranks of one host: one memfd segment mapped by every rank, threads and processes alike. Stripes are
// reduced in rank order by the rank that owns the stripe. Waiting spins (only while ranks do not outnumber cores), then sleeps on a futex.
// The segment carries an abort word: whoever holds the segment (a supervisor, another rank) can end every wait. A segment belongs to one
// epoch and is never used again after an abort: a stopped process may wake up in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "gpu/comm/communicator.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

// Owns the descriptor. Sealed against shrinking and growing, so no peer can cause SIGBUS.
class SharedSegment {
 public:
  static Result<SharedSegment> create(std::uint32_t world, EpochId epoch);
  // Takes ownership of `descriptor` (close on destruction). Checks size, seals and header.
  static Result<SharedSegment> adopt(int descriptor);
  SharedSegment(SharedSegment&&) noexcept;
  SharedSegment& operator=(SharedSegment&&) noexcept;
  ~SharedSegment();

  int descriptor() const;
  std::uint32_t world() const;
  EpochId epoch() const;
  // Ends every present and future wait on this segment. Async-signal-safe, callable from any process that maps it.
  void abort();
  bool aborted() const;

  // A communicator for `rank`; the mapping is shared, so the segment object may go first. nullptr when `rank` is not below world() or has
  // joined before: two members under one number would tear the sums. On an aborted segment every call of the communicator returns false.
  // `wait_max`: a collective that takes longer returns false and aborts the segment, so that no peer waits for a rank that gave up.
  // So does a call whose kind or length differs from what the peers called.
  std::unique_ptr<Communicator> join(RankId rank, std::chrono::milliseconds wait_max);

 private:
  struct State;
  explicit SharedSegment(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace althing::gpu
