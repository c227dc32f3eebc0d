// Sequences of one batch that advance side by side on one rank, with tokens that the caller chooses: what sweeps and tables measure with, where a
// scheduler would only be in the way. Every row gets a token in every step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/executor.hpp"

namespace althing::gpu {

struct ForcedBatchOptions {
  RankPlacement placement;  // of one rank that holds everything
  std::uint32_t rows = 1;
  std::uint32_t context_tokens = 0;  // of each row
  std::uint32_t threads = 1;
  ExpertControl control{};
};

class ForcedBatch {
 public:
  // CPU backend. Errors: those of kv_layout and Executor::create.
  static Result<std::unique_ptr<ForcedBatch>> create(std::shared_ptr<const Model> model, const ForcedBatchOptions& options);

  // The rows' prompts, one step a row. REQUIRES: first, once; rows prompts, none empty.
  Status prefill(std::span<const std::vector<TokenId>> prompts);
  // One token a row. REQUIRES: rows tokens; the context has room.
  struct Step {
    double seconds = 0;
    std::string counts;  // scheduler/vocabulary/expert_counts.hpp
  };
  Result<Step> step(std::span<const TokenId> tokens);
  // (rows, vocabulary): of the last step, for the token that follows.
  const std::vector<float>& logits() const { return logits_; }
  // By layer, since prefill.
  std::vector<ControlCounts> control_counts() const;

 private:
  explicit ForcedBatch(const ForcedBatchOptions& options) : options_(options) {}
  Result<StepResult> run(StepPlan plan);
  void admit(StepPlan& plan, std::uint32_t row);

  ForcedBatchOptions options_;
  KvLayout layout_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<std::uint32_t> lengths_;  // by row
  std::uint64_t steps_ = 0;
  std::uint32_t pages_ = 0;  // handed out
  std::vector<float> logits_;
  std::vector<ControlCounts> counts_at_prefill_;
};

}  // namespace althing::gpu
