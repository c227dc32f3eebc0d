// One rank's engine: keeps rows, page tables and the KV shard, and runs one StepPlan at a time.
// Bits depend only on (tokens, weights, build, layout): not on chunking, batch neighbours, page placement or preemption.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/comm/communicator.hpp"
#include "gpu/decoder_spec.hpp"
#include "gpu/models/gpt_oss.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/placement.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::gpu {

// The layout for `bytes` of KV memory on this rank (f32 on the CPU backend). Full and windowed layers share the pool. too_large with both numbers
// when not even `context_tokens_min` tokens fit. The page count is the same on every rank because the largest shard decides.
Result<KvLayout> kv_layout(const DecoderSpec& spec, std::span<const RankPlacement> placements, std::uint64_t bytes_per_rank,
                           std::uint32_t context_tokens_min);

struct ExecutorConfig {
  RankPlacement placement;
  KvLayout kv;
  Limits limits;
  std::uint32_t threads = 1;
};

// What tests and traces may watch; each is called by the running rank with the values of one step. Shapes in the comments.
struct Observer {
  // (tokens, hidden): the input of each layer, and after the last layer the output of the final norm (layer == layers.size()).
  std::function<void(std::uint32_t layer, std::span<const float>)> hidden;
  // (tokens, experts)
  std::function<void(std::uint32_t layer, std::span<const float>)> router_logits;
  // (tokens, vocabulary): when set, logits are computed for every token, not for sampled ones only, so set it on
  // every rank or on none (ranks must bring equal lengths to the gather). Every rank sees the gathered row.
  std::function<void(std::span<const float>)> logits;
};

// Cumulative since creation: tokens[layer * experts + expert] that this rank computed for an expert it holds (0 for others).
struct ExpertCounts {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::vector<std::uint64_t> tokens;
};

struct ExecutorMemory {
  std::uint64_t weight_bytes = 0;  // mapped, shared with the page cache
  std::uint64_t kv_bytes = 0;
  std::uint64_t scratch_bytes = 0;
};

class Executor {
 public:
  // REQUIRES: config.placement comes from scheduler::place for this model.
  static Result<std::unique_ptr<Executor>> create(std::shared_ptr<const Model> model, const ExecutorConfig& config);
  virtual ~Executor() = default;

  // Computes one plan. Errors: unavailable (the communicator was aborted or timed out: the epoch is over), invalid_argument (a plan that does not
  // fit: wrong base, epoch, row, page or count; nothing was computed). The executor stays usable: the next snapshot starts afresh.
  virtual Result<StepResult> run(const StepPlan& plan, Communicator& communicator) = 0;

  virtual void observe(Observer observer) = 0;
  virtual const ExpertCounts& expert_counts() const = 0;
  virtual ExecutorMemory memory() const = 0;
};

}  // namespace althing::gpu
