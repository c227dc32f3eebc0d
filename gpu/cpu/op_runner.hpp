// Runs one step's ops in order on one rank. An op reads and writes the buffers that its comment in ops/ops.hpp names; work inside an op is
// shared out over the pool in pieces that write disjoint memory. The only calls that wait for other ranks are in reduce_add_norm and logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/comm/communicator.hpp"
#include "gpu/cpu/buffers.hpp"
#include "gpu/cpu/controlled_routing.hpp"
#include "gpu/cpu/expert_counter.hpp"
#include "gpu/cpu/kv_cache.hpp"
#include "gpu/cpu/routing_tracer.hpp"
#include "gpu/cpu/step_counter.hpp"
#include "gpu/cpu/thread_pool.hpp"
#include "gpu/executor.hpp"
#include "gpu/ops/ops.hpp"

namespace althing::gpu::cpu {

struct StepToken {
  std::uint32_t position = 0;
  TokenId id = 0;
  const std::vector<std::vector<PageId>>* pages = nullptr;  // the row's tables, by KV group
  DpGroup dp_group{};
};

// One step as the ops see it: tokens of all DP groups.
struct StepBatch {
  std::vector<StepToken> tokens;
  std::vector<std::uint32_t> sampled;  // indexes into `tokens`, ascending
  std::vector<float> logits;           // (tokens whose logits are computed, vocabulary), after the logits op
  std::optional<std::size_t> damaged;  // index into `tokens`: computed from NaN (Executor::damage)
  bool all_logits = false;             // logits of every token, not of sampled ones only
};

class OpRunner {
 public:
  // All references outlive the runner. `step_counter` may be null: then steps are not counted for all ranks. `control` may be null: tokens get the
  // experts that they chose. `tracer` is asked for every step whether it is active.
  OpRunner(const Program& program, const KvCache& cache, Buffers& buffers, ThreadPool& pool, const Observer& observer, ExpertCounter& counts,
           StepCounter* step_counter, ControlledRouting* control, RoutingTracer& tracer);

  // False when the communicator was aborted or timed out. vocabulary_parts: rows of the head by rank.
  bool run(StepBatch& batch, Communicator& communicator, std::span<const std::uint32_t> vocabulary_parts);

 private:
  struct Step {
    StepBatch& batch;
    Communicator& communicator;
    std::span<const std::uint32_t> vocabulary_parts;
    std::uint32_t tokens() const { return static_cast<std::uint32_t>(batch.tokens.size()); }
  };

  bool run(const EmbedOp& op, Step& step);
  bool run(const NormOp& op, Step& step);
  bool run(const QkvOp& op, Step& step);
  bool run(const AttentionOp& op, Step& step);
  bool run(const AttnOutOp& op, Step& step);
  bool run(const ReduceAddNormOp& op, Step& step);
  bool run(const RouteOp& op, Step& step);
  bool run(const GatherOp& op, Step& step);
  bool run(const ExpertsOp& op, Step& step);
  bool run(const CombineOp& op, Step& step);
  bool run(const LogitsOp& op, Step& step);
  bool run(const SampleOp& op, Step& step);

  bool gather_logits(std::span<const float> mine, std::uint32_t count, Step& step);
  void sort_tokens(const Step& step);
  void fill_rotation(const Step& step);
  void linear(const LinearArgs& args);
  bool add_over_ranks(const ReduceAddNormOp& op, Step& step);
  bool is_here(const GatherOp& op, std::uint32_t slot, std::uint32_t pair) const;
  void pad(const GatherOp& op);
  void run_experts(const ExpertsOp& op);
  void gate_up_block(const ExpertsOp& op, std::uint32_t slot, std::uint32_t block, std::uint32_t thread);
  void down_block(const ExpertsOp& op, std::uint32_t slot, std::uint32_t block, std::uint32_t thread);
  void combine_token(std::uint32_t token, std::uint32_t tokens);
  void add_combined(std::uint32_t token, std::uint32_t tokens);
  void note_progress() const {
    if (observer_.progress) observer_.progress();
  }
  void show(const std::function<void(std::uint32_t, std::span<const float>)>& watcher, std::uint32_t layer, Rows& rows, std::uint32_t tokens);
  float* scratch(std::uint32_t thread) { return b_.scratch[thread].data(); }

  const Program& program_;
  const KvCache& cache_;
  Buffers& b_;
  ThreadPool& pool_;
  const Observer& observer_;
  ExpertCounter& counts_;
  StepCounter* step_counter_;
  ControlledRouting* control_;
  RoutingTracer& tracer_;
  std::vector<float> empty_row_;           // the input of padding
  std::vector<std::uint32_t> own_;         // the step's tokens of this rank's DP group, ascending
  std::vector<const float*> own_normed_;   // their rows of `normed`
  std::vector<std::uint32_t> group_rows_;  // by DP group: its tokens
  std::vector<std::uint32_t> sum_row_;     // by token: its row in the groups' sums, which stand group after group
  std::vector<std::uint32_t> slot_of_;     // by expert, of the layer at hand
  std::vector<std::uint32_t> active_;      // slots with tokens
};

}  // namespace althing::gpu::cpu
