// See the header.
#include "gpu/synthetic_executor.hpp"

#include <thread>
#include <utility>
#include <vector>

#include "gpu/row_table.hpp"
#include "scheduler/vocabulary/logprobs.hpp"

namespace althing::gpu {
namespace {

class SyntheticExecutor final : public Executor {
 public:
  SyntheticExecutor(std::shared_ptr<const Model> model, const ExecutorConfig& config)
      : model_(std::move(model)),
        script_(config.script),
        step_(config.synthetic_step),
        rows_({config.kv, config.limits.rows_max, config.limits.step_tokens_max, config.limits.context_tokens_max, model_->spec.vocabulary,
               config.placement.dp, 0}),
        readers_(config.limits.rows_max) {}

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override {
    const auto due = std::chrono::steady_clock::now() + step_;
    auto result = run_step(plan, *communicator);
    if (result && step_.count() > 0) std::this_thread::sleep_until(due);
    if (progress_) progress_();
    done(std::move(result));
  }

  Status damage(RowIndex row, Damage what) override { return Executor::damage(row, what); }
  void observe(Observer observer) override { progress_ = std::move(observer.progress); }
  ExpertCounts expert_counts() const override { return {}; }
  bool counts_steps() const override { return true; }  // and all of them are none
  ExecutorMemory memory() const override { return {}; }

 private:
  Result<StepResult> run_step(const StepPlan& plan, const Communicator& communicator) {
    if (communicator.epoch() != plan.epoch)
      return Error{ErrorCode::invalid_argument, "the plan is of epoch " + std::to_string(plan.epoch.value) + ", the communicator of another",
                   "epoch"};
    auto staged = rows_.check(plan);
    if (!staged) return staged.error();
    rows_.commit(plan, std::move(*staged));
    StepResult result{plan.step, plan.epoch, {}};
    for (const RowWork& work : plan.work) {
      RowState& row = rows_.at(work.row);
      ScriptReader& reader = readers_[work.row.value];
      // A row is computed from its first token on whenever somebody gets it.
      if (work.start == 0) reader = {};
      if (work.tokens.empty()) reader.read(*script_, row.drawn_token);
      for (const TokenId token : work.tokens) reader.read(*script_, token);
      row.advance(work);
      if (work.sample) draw(row, reader, work.row, result);
    }
    return result;
  }

  void draw(RowState& row, const ScriptReader& reader, RowIndex index, StepResult& result) const {
    row.drawn_token = reader.next(*script_, row.sampling.seed + row.sampling.choice);
    if (row.seen) row.seen->add_output(row.drawn_token);
    result.drawn.push_back({index, row.request, row.drawn_token, false});
    if (row.sampling.logprobs) append_logprobs(result.logprobs, {row.request, {row.drawn_token, 0, {{row.drawn_token, 0}}}});
  }

  std::shared_ptr<const Model> model_;
  std::shared_ptr<const SyntheticScript> script_;
  std::chrono::microseconds step_;
  RowTable rows_;
  std::vector<ScriptReader> readers_;  // by row
  std::function<void()> progress_;
};

}  // namespace

Result<std::unique_ptr<Executor>> create_synthetic_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config) {
  if (config.script == nullptr) return Error{ErrorCode::invalid_argument, "a synthetic engine needs a script", "script"};
  return std::unique_ptr<Executor>(std::make_unique<SyntheticExecutor>(std::move(model), config));
}

}  // namespace althing::gpu
