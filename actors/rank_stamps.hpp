// What a rank shows of itself while it works, in one page of memory that the supervisor maps too: a beat of a thread that does nothing else, the work
// done, the collectives entered and left, the times of its steps. Whoever computes writes plain atomic words and nobody waits for anybody, so showing
// costs nothing that could be measured, and a rank that is stopped, killed or stuck leaves the page as it was. A page belongs to one process.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <thread>

#include "actors/control_channel.hpp"
#include "gpu/comm/communicator.hpp"

namespace althing::actors {

inline constexpr std::uint32_t stamps_version = 1;
inline constexpr std::chrono::milliseconds heart_interval{10};

// Nanoseconds on the clock that all processes of the host share and nobody can set.
inline std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Step times by quarters of an octave: a bucket's upper edge is at most 25 % above anything in it. One writer at a time.
class StepTimes {
 public:
  void add(std::uint64_t nanoseconds) { counts_[bucket_of(nanoseconds)].fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t count() const;
  // The upper edge of the bucket that holds the quantile; 0 when there is no step yet.
  std::chrono::nanoseconds quantile(double fraction) const;

 private:
  static constexpr std::size_t octaves = 40;  // of microseconds; the last also holds everything above
  static std::size_t bucket_of(std::uint64_t nanoseconds);

  std::array<std::atomic<std::uint32_t>, octaves * 4> counts_{};
};

struct RankStamps {
  std::uint32_t version = stamps_version;
  // By the heart's thread.
  alignas(64) std::atomic<std::uint64_t> beats{0};
  std::atomic<std::uint64_t> beat_ns{0};  // when, on monotonic_ns()
  // By the threads that compute.
  alignas(64) std::atomic<std::uint64_t> progress{0};  // grows at least once a layer on CPU ranks, once a step on GPUs
  std::atomic<std::uint32_t> in_flight{0};             // steps taken and not done
  std::atomic<std::uint64_t> steps{0};                 // done, since the process began
  std::atomic<std::uint64_t> epoch{0};                 // the membership it has joined
  std::atomic<std::uint32_t> tokens{0};                // of the newest step taken …
  std::atomic<std::uint32_t> tokens_done_max{0};       // … and of the largest step done
  std::atomic<std::uint64_t> slowest_ns{0};            // of the steps done
  // By whoever calls collectives; from zero in every epoch, so equal numbers mean the same call on all ranks.
  alignas(64) std::atomic<std::uint64_t> entered{0};
  std::atomic<std::uint64_t> left{0};
  // Faults that were ordered and have happened (actors/rank_faults).
  std::atomic<std::uint64_t> faults{0};
  StepTimes times;

  void step_done(std::uint64_t nanoseconds, std::uint32_t step_tokens);
};

// The page: made by the supervisor, inherited by the rank. Sealed, so neither side can take it from under the other.
class StampPage {
 public:
  static Result<StampPage> create();
  // Takes ownership of the descriptor. Errors: corrupt (not such a page), io.
  static Result<StampPage> adopt(Descriptor descriptor);

  // The mapping lives as long as any of these.
  const std::shared_ptr<RankStamps>& stamps() const { return stamps_; }
  int descriptor() const { return descriptor_.get(); }

 private:
  StampPage(Descriptor descriptor, std::shared_ptr<RankStamps> stamps) : descriptor_(std::move(descriptor)), stamps_(std::move(stamps)) {}
  Descriptor descriptor_;
  std::shared_ptr<RankStamps> stamps_;
};

// Beats until it is destroyed. Its thread computes nothing and takes no lock, so it stops only when the process does.
class Heart {
 public:
  explicit Heart(std::shared_ptr<RankStamps> stamps);

 private:
  std::jthread thread_;
};

// Shows which collective the rank is in; does nothing else.
class StampedCommunicator final : public gpu::Communicator {
 public:
  StampedCommunicator(std::shared_ptr<gpu::Communicator> inner, std::shared_ptr<RankStamps> stamps);

  RankId rank() const override { return inner_->rank(); }
  std::uint32_t world() const override { return inner_->world(); }
  EpochId epoch() const override { return inner_->epoch(); }
  bool all_reduce_sum(std::span<float> values) override;
  bool all_reduce_sum(std::span<std::int64_t> values) override;
  bool all_gather(std::span<const float> mine, std::span<const std::uint32_t> counts, std::span<float> all) override;
  bool all_gather_sums(std::span<const float> mine, std::uint32_t group_size, std::span<const std::uint32_t> counts, std::span<float> all) override;
  bool barrier() override;

 private:
  template <class Call>
  bool shown(const Call& call);

  std::shared_ptr<gpu::Communicator> inner_;
  std::shared_ptr<RankStamps> stamps_;
};

}  // namespace althing::actors
