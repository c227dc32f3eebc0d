// From plan to result, all inside submit(): check the plan against the rows, commit it, lay the tokens out as one batch, run the ops, draw.
// Everything that can be wrong with a plan is found before the first value is computed; a step that peers broke off leaves the rows void until a
// snapshot.
#include "gpu/cpu/cpu_executor.hpp"

#include <algorithm>
#include <string>

#include "gpu/cpu/op_runner.hpp"
#include "gpu/ops/lower.hpp"
#include "gpu/row_table.hpp"
#include "gpu/sampling.hpp"

namespace althing::gpu::cpu {
namespace {

constexpr std::uint32_t threads_max = 256;
constexpr std::uint32_t head_dim_max = 1024;

Error invalid(const std::string& message, const char* field) { return {ErrorCode::invalid_argument, message, field}; }
Error interrupted() {
  return {
      ErrorCode::unavailable, "the step was broken off: a rank is gone or too slow; this epoch is over, continue with a snapshot in a new one", {}};
}

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::shared_ptr<const Model> model, const ExecutorConfig& config, Program program, KvCache cache)
      : model_(std::move(model)),
        config_(config),
        program_(std::move(program)),
        cache_(std::move(cache)),
        rows_({config.kv, config.limits.rows_max, config.limits.step_tokens_max,
               std::min(config.limits.context_tokens_max, program_.context_tokens_max), program_.vocabulary}),
        buffers_(program_, config.limits.step_tokens_max, config.threads),
        pool_(config.threads),
        counts_(program_.layers, program_.experts),
        runner_(program_, cache_, buffers_, pool_, observer_, counts_) {}

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override { done(compute(plan, *communicator)); }
  void observe(Observer observer) override { observer_ = std::move(observer); }
  ExpertCounts expert_counts() const override { return counts_.copy(); }
  ExecutorMemory memory() const override { return {program_.weight_bytes, cache_.bytes(), buffers_.bytes(), 0, 0}; }

 private:
  Result<StepResult> compute(const StepPlan& plan, Communicator& communicator) {
    if (auto status = check_communicator(plan, communicator); !status) return status.error();
    auto staged = rows_.check(plan);
    if (!staged) return staged.error();
    if (met_epoch_ != plan.epoch || vocabulary_parts_.empty())
      if (auto status = meet(communicator, plan.epoch); !status) return status.error();
    rows_.commit(plan, std::move(*staged));

    StepBatch batch = lay_out(plan);
    if (!batch.tokens.empty() && !runner_.run(batch, communicator, vocabulary_parts_)) {
      rows_.lose();
      return interrupted();
    }
    return finish(plan, batch);
  }

  Status check_communicator(const StepPlan& plan, const Communicator& c) const {
    if (c.world() != config_.placement.world || c.rank() != config_.placement.rank)
      return invalid("this executor is rank " + std::to_string(config_.placement.rank.value) + " of " + std::to_string(config_.placement.world) +
                         ", the communicator is rank " + std::to_string(c.rank().value) + " of " + std::to_string(c.world()),
                     "communicator");
    if (c.epoch() != plan.epoch)
      return invalid("the plan is of epoch " + std::to_string(plan.epoch.value) + ", the communicator of epoch " + std::to_string(c.epoch().value),
                     "epoch");
    return Ok{};
  }

  // Once an epoch: ranks tell each other their parts of the vocabulary and their experts. Together they must be the whole model, exactly once.
  Status meet(Communicator& communicator, EpochId epoch) {
    const std::uint32_t world = communicator.world();
    std::vector<std::int64_t> told(std::size_t{world} * 2 + program_.experts);
    told[config_.placement.rank.value * std::size_t{2}] = config_.placement.vocabulary.begin;
    told[config_.placement.rank.value * std::size_t{2} + 1] = config_.placement.vocabulary.end;
    for (const ExpertId expert : config_.placement.experts) ++told[std::size_t{world} * 2 + expert.value];
    if (!communicator.all_reduce_sum(std::span<std::int64_t>(told))) {
      rows_.lose();
      return interrupted();
    }
    std::vector<std::uint32_t> parts;
    std::int64_t end = 0;
    for (std::size_t r = 0; r < world; ++r) {
      if (told[2 * r] != end || told[2 * r + 1] <= end)
        return invalid("the ranks' parts of the vocabulary do not join at " + std::to_string(end), "placement");
      parts.push_back(static_cast<std::uint32_t>(told[2 * r + 1] - end));
      end = told[2 * r + 1];
    }
    if (end != program_.vocabulary) return invalid("the ranks hold the vocabulary up to " + std::to_string(end), "placement");
    for (std::size_t e = 0; e < program_.experts; ++e)
      if (told[std::size_t{world} * 2 + e] != 1)
        return invalid("expert " + std::to_string(e) + " is held by " + std::to_string(told[std::size_t{world} * 2 + e]) + " ranks instead of 1",
                       "placement");
    vocabulary_parts_ = std::move(parts);
    met_epoch_ = epoch;
    return Ok{};
  }

  StepBatch lay_out(const StepPlan& plan) {
    StepBatch batch;
    batch.all_logits = static_cast<bool>(observer_.logits);
    for (const RowWork& work : plan.work) {
      const RowState& row = rows_.at(work.row);
      for (std::uint32_t i = 0; i < work.count; ++i)
        batch.tokens.push_back({work.start + i, work.tokens.empty() ? row.drawn_token : work.tokens[i], &row.pages});
      if (work.sample) batch.sampled.push_back(static_cast<std::uint32_t>(batch.tokens.size() - 1));
    }
    return batch;
  }

  StepResult finish(const StepPlan& plan, const StepBatch& batch) {
    std::vector<const RowWork*> sampled;
    for (const RowWork& work : plan.work) {
      RowState& row = rows_.at(work.row);
      row.started = true;
      row.length = work.start + work.count;
      row.drawn = work.sample;
      if (work.sample) sampled.push_back(&work);
    }
    StepResult result{plan.step, plan.epoch, std::vector<DrawnToken>(sampled.size())};
    pool_.run(static_cast<std::uint32_t>(sampled.size()), [&](std::uint32_t i, std::uint32_t) {
      const RowWork& work = *sampled[i];
      RowState& row = rows_.at(work.row);
      const std::size_t index = batch.all_logits ? batch.sampled[i] : i;
      const std::span<const float> logits(batch.logits.data() + index * program_.vocabulary, program_.vocabulary);
      row.drawn_position = work.start + work.count;
      const auto token = draw(logits, row.sampling, row.drawn_position);
      // A void draw may still be the source of a step that is already planned; any token will do, the request fails.
      row.drawn_token = token.value_or(0);
      result.drawn[i] = {work.row, row.request, row.drawn_token, !token.has_value()};
    });
    return result;
  }

  std::shared_ptr<const Model> model_;  // owns the weights that program_ points into
  ExecutorConfig config_;
  Program program_;
  KvCache cache_;
  RowTable rows_;
  Buffers buffers_;
  ThreadPool pool_;
  Observer observer_;
  ExpertCounter counts_;
  OpRunner runner_;
  EpochId met_epoch_;
  std::vector<std::uint32_t> vocabulary_parts_;  // by rank, known since met_epoch_
};

// A layer must use the window of its group, or pages that it still needs would be given away.
Status check_windows(const DecoderSpec& spec, const KvLayout& layout) {
  for (const KvGroup& group : layout.groups)
    for (const std::uint32_t layer : group.layers)
      if (spec.layers[layer].attention.window != group.window)
        return invalid("layer " + std::to_string(layer) + " has a window of " + std::to_string(spec.layers[layer].attention.window) +
                           ", its KV group one of " + std::to_string(group.window),
                       "kv");
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<Executor>> create_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config) {
  const DecoderSpec& spec = model->spec;
  if (config.threads == 0 || config.threads > threads_max)
    return invalid("threads is " + std::to_string(config.threads) + "; use 1 to " + std::to_string(threads_max), "threads");
  if (config.limits.rows_max == 0 || config.limits.step_tokens_max == 0) return invalid("rows_max and step_tokens_max must not be 0", "limits");
  if (spec.head_dim % 8 != 0 || spec.head_dim > head_dim_max)
    return Error{ErrorCode::unsupported, "head_dim is " + std::to_string(spec.head_dim) + "; the CPU backend takes multiples of 8 up to 1024",
                 "head_dim"};
  auto program = lower(spec, config.placement);
  if (!program) return program.error();
  auto cache = KvCache::create(config.kv, {program->kv_heads, program->head_dim}, program->layers);
  if (!cache) return cache.error();
  if (auto status = check_windows(spec, config.kv); !status) return status.error();
  return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(std::move(model), config, std::move(*program), std::move(*cache)));
}

}  // namespace althing::gpu::cpu
