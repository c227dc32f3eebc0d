// The scheduler core and its ranks without actors: one loop that carries out effects. For tests and benchmarks of what the engine computes. Ranks
// beyond the first run on threads of their own, joined by the shared-memory communicator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/comm/shared_memory_communicator.hpp"
#include "gpu/executor.hpp"
#include "scheduler/core.hpp"

namespace althing::tests {

class LocalEngine {
 public:
  struct Options {
    std::uint32_t ranks = 1;
    std::uint32_t threads = 1;
    std::uint64_t kv_bytes = 64u << 20;  // a rank
    gpu::Device device = gpu::Device::cpu;
    Limits limits;
  };
  static Result<std::unique_ptr<LocalEngine>> create(std::shared_ptr<const gpu::Model> model, const Options& options);
  ~LocalEngine();

  struct Completion {
    std::vector<TokenId> tokens;
    FinishReason reason = FinishReason::error;
    Error error;
  };
  // Runs all requests together until each has ended; completions in the order of `requests`.
  std::vector<Completion> run(const std::vector<Submitted>& requests);
  std::uint64_t steps() const { return core_->stats().steps_done; }
  // Seconds spent inside Core::on since creation.
  double core_seconds() const { return core_seconds_; }

 private:
  LocalEngine() = default;
  void feed(const Event& event);
  void perform(const Effect& effect);
  void run_front_step();

  std::unique_ptr<scheduler::Core> core_;
  std::vector<std::unique_ptr<gpu::Executor>> executors_;
  std::unique_ptr<gpu::SharedSegment> segment_;
  std::vector<std::unique_ptr<gpu::Communicator>> communicators_;
  std::vector<StepPlan> queued_;  // planned, not computed yet: at most two
  std::map<RequestId, Completion> running_;
  std::map<RequestId, Completion> done_;
  double core_seconds_ = 0;
};

}  // namespace althing::tests
