// Collectives among the ranks of one epoch. Results are the same bits on every rank: float sums are taken in rank order, integer sums commute.
// Every call is made by all ranks in the same order. A call returns false when the communicator was aborted or `deadline` passed: the
// result is void and the communicator must not be used again (a new epoch brings a new one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::gpu {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankId rank() const = 0;
  virtual std::uint32_t world() const = 0;
  virtual EpochId epoch() const = 0;

  // In place. Any length: longer than the buffer is chunked.
  [[nodiscard]] virtual bool all_reduce_sum(std::span<float> values) = 0;
  [[nodiscard]] virtual bool all_reduce_sum(std::span<std::int64_t> values) = 0;
  // Each rank brings `mine`; `all` is their concatenation in rank order. Lengths may differ; counts[r] is rank r's.
  [[nodiscard]] virtual bool all_gather(std::span<const float> mine, std::span<const std::uint32_t> counts, std::span<float> all) = 0;
  // Ranks stand in groups of `group_size` consecutive ones, and each group brings a part: the sum of its ranks' `mine`, in rank order. `all` is the
  // parts' concatenation in the order of groups. Lengths may differ; counts[g] is that of group g's part and of each of its ranks' `mine`.
  [[nodiscard]] virtual bool all_gather_sums(std::span<const float> mine, std::uint32_t group_size, std::span<const std::uint32_t> counts,
                                             std::span<float> all) = 0;
  [[nodiscard]] virtual bool barrier() = 0;
};

}  // namespace althing::gpu
