// See the header.
#include "gpu/forced_batch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "gpu/comm/solo_communicator.hpp"

namespace althing::gpu {
namespace {

constexpr EpochId epoch{1};
constexpr std::uint64_t kv_bytes_at_first = std::uint64_t{1}
                                            << 30;  // the layout's page size follows from it; how many pages there are is ours to say

std::uint32_t pages_for(std::uint32_t tokens, std::uint32_t tokens_per_page) { return (tokens + tokens_per_page - 1) / tokens_per_page; }

}  // namespace

Result<std::unique_ptr<ForcedBatch>> ForcedBatch::create(std::shared_ptr<const Model> model, const ForcedBatchOptions& options) {
  const DecoderSpec& spec = model->spec;
  auto layout = kv_layout(spec, std::span(&options.placement, 1), kv_format(Device::cpu), kv_bytes_at_first, options.context_tokens);
  if (!layout) return layout.error();
  std::uint32_t pages = 0;
  for (const KvGroup& group : layout->groups) pages += pages_for(options.context_tokens, group.tokens_per_page);
  layout->page_count = pages * options.rows;

  std::unique_ptr<ForcedBatch> batch(new ForcedBatch(options));
  batch->layout_ = *layout;
  batch->lengths_.resize(options.rows);
  ExecutorConfig config;
  config.placement = options.placement;
  config.kv = *layout;
  config.threads = options.threads;
  config.control = options.control;
  config.limits.rows_max = options.rows;
  config.limits.step_tokens_max = std::max(options.rows, options.context_tokens);
  config.limits.context_tokens_max = options.context_tokens;
  auto executor = Executor::create(std::move(model), config);
  if (!executor) return executor.error();
  batch->executor_ = std::move(*executor);
  batch->communicator_ = solo_communicator(epoch);
  return batch;
}

void ForcedBatch::admit(StepPlan& plan, std::uint32_t row) {
  plan.set.push_back({RowIndex{row}, RequestId{row + 1}, {}, DpGroup{}});
  for (std::uint32_t group = 0; group < layout_.groups.size(); ++group) {
    PageGrant grant{RowIndex{row}, group, 0, {}};
    for (std::uint32_t i = pages_for(options_.context_tokens, layout_.groups[group].tokens_per_page); i > 0; --i)
      grant.pages.push_back(PageId{pages_++});
    plan.pages.push_back(std::move(grant));
  }
}

Result<StepResult> ForcedBatch::run(StepPlan plan) {
  plan.epoch = epoch;
  plan.snapshot = steps_ == 0;
  plan.base = StepId{steps_};
  plan.step = StepId{++steps_};
  for (const RowWork& work : plan.work) lengths_[work.row.value] += work.count;
  return executor_->run(plan, *communicator_);
}

Status ForcedBatch::prefill(std::span<const std::vector<TokenId>> prompts) {
  for (std::uint32_t row = 0; row < prompts.size(); ++row) {
    StepPlan plan;
    admit(plan, row);
    plan.work.push_back({RowIndex{row}, 0, static_cast<std::uint32_t>(prompts[row].size()), prompts[row], false});
    if (auto result = run(std::move(plan)); !result) return result.error();
  }
  counts_at_prefill_ = executor_->control_counts();
  Observer observer;
  observer.logits = [this](std::span<const float> values) { logits_.assign(values.begin(), values.end()); };
  executor_->observe(std::move(observer));
  return Ok{};
}

Result<ForcedBatch::Step> ForcedBatch::step(std::span<const TokenId> tokens) {
  StepPlan plan;
  for (std::uint32_t row = 0; row < tokens.size(); ++row) plan.work.push_back({RowIndex{row}, lengths_[row], 1, {tokens[row]}, false});
  const auto began = std::chrono::steady_clock::now();
  auto result = run(std::move(plan));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (!result) return result.error();
  return Step{took.count(), std::move(result->counts)};
}

std::vector<ControlCounts> ForcedBatch::control_counts() const {
  std::vector<ControlCounts> counts = executor_->control_counts();
  for (std::size_t layer = 0; layer < counts.size(); ++layer) counts[layer] -= counts_at_prefill_[layer];
  return counts;
}

}  // namespace althing::gpu
