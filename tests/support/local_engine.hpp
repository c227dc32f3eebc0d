// The scheduler core and its ranks without actors: one loop that carries out effects. For tests and benchmarks of what the engine computes. Ranks
// beyond the first run on threads of their own, joined by the shared-memory communicator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/comm/shared_memory_communicator.hpp"
#include "gpu/executor.hpp"
#include "gpu/mirror_memory.hpp"
#include "scheduler/core.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::tests {

class LocalEngine {
 public:
  struct Options {
    Grid grid;
    std::uint32_t threads = 1;
    std::uint64_t kv_bytes = 64u << 20;  // a rank
    gpu::Device device = gpu::Device::cpu;
    Limits limits;
    std::uint64_t mirror_bytes = 0;  // a rank; 0: no KV mirror
    bool share_prefixes = false;
    std::shared_ptr<const gpu::Model> draft{};  // guesses on the first rank, up to limits.speculation_tokens_max tokens
  };
  static Result<std::unique_ptr<LocalEngine>> create(std::shared_ptr<const gpu::Model> model, const Options& options);
  ~LocalEngine();

  struct Completion {
    std::vector<TokenId> tokens;
    FinishReason reason = FinishReason::error;
    Error error;
    Usage usage;
  };
  // Runs all requests together until each has ended; completions in the order of `requests`.
  std::vector<Completion> run(const std::vector<Submitted>& requests);
  // For who wants to stop in between: a request is taken in, one step is run (false when none is planned), what it has drawn so far is told.
  void submit(const Submitted& request);
  bool step();
  const std::vector<TokenId>& tokens(RequestId request) const {
    return running_.count(request) > 0 ? running_.at(request).tokens : done_.at(request).tokens;
  }
  // From now on somebody sees the logits of every token that is computed.
  using Watcher = std::function<void(RequestId request, std::uint32_t position, std::span<const float> logits)>;
  void watch(Watcher watcher) { watcher_ = std::move(watcher); }
  // Every rank dies with its KV cache and comes back under a new epoch; mirrors stay. Errors: those of Executor::create.
  Status lose_ranks();
  scheduler::CoreStats stats() const { return core_->stats(); }
  gpu::MirrorCounts mirror_counts(std::size_t rank) const { return executors_[rank]->mirror_counts(); }
  // Rows in which requests were set, by DP group.
  const std::vector<std::uint32_t>& rows_set() const { return rows_set_; }
  std::uint64_t steps() const { return core_->stats().steps_done; }
  std::uint64_t preemptions() const { return core_->stats().preemptions; }
  // Seconds spent inside Core::on since creation.
  double core_seconds() const { return core_seconds_; }

 private:
  LocalEngine() = default;
  void feed(const Event& event);
  void perform(const Effect& effect);
  void run_front_step();
  // Fresh executors in a new epoch.
  Status start_ranks();

  std::shared_ptr<const gpu::Model> model_;
  Options options_;
  std::vector<RankPlacement> placements_;
  KvLayout kv_;
  std::vector<gpu::MirrorMemory> mirrors_;  // by rank
  std::uint64_t epoch_ = 0;
  std::unique_ptr<scheduler::Core> core_;
  std::vector<std::unique_ptr<gpu::Executor>> executors_;
  std::unique_ptr<gpu::SharedSegment> segment_;
  std::vector<std::unique_ptr<gpu::Communicator>> communicators_;
  std::vector<StepPlan> queued_;  // planned, not computed yet: at most two
  std::map<RequestId, Completion> running_;
  std::map<RequestId, Completion> done_;
  std::vector<std::uint32_t> rows_set_;
  std::map<RowIndex, RequestId> rows_;  // as of the last step that ran
  Watcher watcher_;
  double core_seconds_ = 0;
};

}  // namespace althing::tests
