// From plan to result, all inside submit(): check the plan against the rows, commit it, lay the tokens out as one batch, run the ops, draw.
// Everything that can be wrong with a plan is found before the first value is computed; a step that peers broke off leaves the rows void until a
// snapshot.
#include "gpu/cpu/cpu_executor.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "gpu/cpu/mirror_copier.hpp"
#include "gpu/cpu/op_runner.hpp"
#include "gpu/introduction.hpp"
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

// Counts of a step have one number of experts a token; where layers differ in it, experts are counted by rank only.
bool same_in_every_layer(const Program& program) {
  return std::all_of(program.ops.begin(), program.ops.end(), [&](const Op& op) {
    const auto* route = std::get_if<RouteOp>(&op);
    return route == nullptr || route->experts_per_token == program.experts_per_token;
  });
}

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::shared_ptr<const Model> model, const ExecutorConfig& config, Program program, KvCache cache)
      : model_(std::move(model)),
        config_(config),
        program_(std::move(program)),
        cache_(std::move(cache)),
        rows_({config.kv, config.limits.rows_max, config.limits.step_tokens_max,
               std::min(config.limits.context_tokens_max, program_.context_tokens_max), program_.vocabulary, program_.dp_groups,
               config.mirror == nullptr ? 0 : config.mirror->slots()}),
        buffers_(program_, config.limits.step_tokens_max,
                 ControlledRouting::padded_rows_max(config.control, config.limits.step_tokens_max, program_.experts_per_token, program_.experts),
                 config.threads),
        pool_(config.threads),
        counts_(program_.layers, program_.experts),
        control_(config.control, program_.layers),
        step_counter_(program_.layers, program_.experts, config.limits.step_tokens_max),
        tracer_(program_.layers, program_.experts),
        can_count_steps_(same_in_every_layer(program_)),
        runner_(program_, cache_, buffers_, pool_, observer_, counts_, config.count_steps && can_count_steps_ ? &step_counter_ : nullptr,
                config.control.off() ? nullptr : &control_, tracer_) {
    if (config.mirror != nullptr) copier_.emplace(cache_, config.mirror);
  }

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override { done(compute(plan, *communicator)); }
  Status damage(RowIndex row, Damage what) override {
    if (row.value >= config_.limits.rows_max || !rows_.at(row).occupied) return invalid("nobody holds row " + std::to_string(row.value), "row");
    const RowState& state = rows_.at(row);
    if (what == Damage::activations) {
      damaged_row_ = row;
      return Ok{};
    }
    if (state.dp_group != program_.dp_group)
      return invalid("row " + std::to_string(row.value) + " has its keys in DP group " + std::to_string(state.dp_group.value) +
                         ", this rank is of group " + std::to_string(program_.dp_group.value),
                     "row");
    if (!state.started || state.length == 0) return invalid("row " + std::to_string(row.value) + " has no keys yet", "row");
    if (copier_) copier_->settle();
    for (std::size_t g = 0; g < state.pages.size(); ++g)
      cache_.fill(state.pages[g][(state.length - 1) / config_.kv.groups[g].tokens_per_page], std::numeric_limits<float>::quiet_NaN());
    return Ok{};
  }
  PageKey mirror_seed() const override { return config_.mirror ? config_.mirror->seed() : PageKey{}; }
  std::vector<MirroredPage> take_mirror() override {
    std::vector<MirroredPage> pages;
    if (!copier_) return pages;
    copier_->settle();
    config_.mirror->take();
    for (const auto& [slot, key] : copier_->memory().contents()) pages.push_back({program_.dp_group, slot, key});
    return pages;
  }
  MirrorCounts mirror_counts() const override { return copier_ ? copier_->counts() : MirrorCounts{}; }
  void observe(Observer observer) override { observer_ = std::move(observer); }
  ExpertCounts expert_counts() const override { return counts_.copy(); }
  bool counts_steps() const override { return can_count_steps_; }
  std::vector<ControlCounts> control_counts() const override { return control_.counts(); }
  ExecutorMemory memory() const override { return {program_.weight_bytes, cache_.bytes(), buffers_.bytes(), 0, 0}; }

 private:
  Result<StepResult> compute(const StepPlan& plan, Communicator& communicator) {
    if (auto status = check_communicator(plan, communicator); !status) return status.error();
    auto staged = rows_.check(plan);
    if (!staged) return staged.error();
    if (met_epoch_ != plan.epoch || vocabulary_parts_.empty())
      if (auto status = meet(communicator, plan.epoch); !status) return status.error();
    rows_.commit(plan, std::move(*staged));
    if (copier_) release_pages(plan);
    for (const LeftPage& left : plan.scrub)
      if (left.dp_group == program_.dp_group) cache_.fill(left.page, 0.0F);

    auto unrestored = restore(plan, communicator);
    if (!unrestored) {
      rows_.lose();
      return interrupted();
    }
    StepBatch batch = lay_out(plan);
    if (counting()) tracer_.begin(traced_rows(plan, batch), program_.experts_per_token);
    if (!batch.tokens.empty() && !runner_.run(batch, communicator, vocabulary_parts_)) {
      rows_.lose();
      return interrupted();
    }
    for (const MirrorPage& page : plan.mirror)
      if (page.dp_group == program_.dp_group) copier_->hand_over(page);
    StepResult result = finish(plan, batch);
    result.unrestored = std::move(*unrestored);
    if (counting() && !batch.tokens.empty()) result.counts = step_counter_.take();
    if (tracer_.active()) result.routing = tracer_.take();
    return result;
  }

  bool counting() const { return config_.count_steps && can_count_steps_; }

  std::vector<TracedRow> traced_rows(const StepPlan& plan, const StepBatch& batch) const {
    std::vector<TracedRow> traced;
    std::uint32_t first = 0;
    for (const RowWork& work : plan.work) {
      const RowState& row = rows_.at(work.row);
      if (row.trace_top_m > 0) {
        TracedRow& to = traced.emplace_back(TracedRow{row.request, first, work.start, row.trace_top_m, {}});
        for (std::uint32_t i = 0; i < work.count; ++i) to.tokens.push_back(batch.tokens[first + i].id);
      }
      first += work.count;
    }
    return traced;
  }

  // What a row is given with keys in it may be copied all the same. Pages that get another owner, or other contents, are not the copier's to read any
  // more; a new epoch leaves it none of those that are granted again.
  void release_pages(const StepPlan& plan) {
    std::vector<PageId> pages;
    for (const PageGrant& grant : plan.pages)
      if (!grant.kept && rows_.at(grant.row).dp_group == program_.dp_group) pages.insert(pages.end(), grant.pages.begin(), grant.pages.end());
    for (const LeftPage& left : plan.scrub)
      if (left.dp_group == program_.dp_group) pages.push_back(left.page);
    copier_->withdraw(std::move(pages));
    for (const SlotOfGroup& place : plan.forget)
      if (place.dp_group == program_.dp_group) copier_->forget(place.slot);
  }

  // The slots whose pages some rank could not restore, the same answer on every rank; nothing when the step was broken off.
  std::optional<std::vector<SlotOfGroup>> restore(const StepPlan& plan, Communicator& communicator) {
    std::vector<SlotOfGroup> unrestored;
    if (plan.restore.empty()) return unrestored;
    copier_->settle();
    std::vector<std::int64_t> missing(plan.restore.size(), 0);
    pool_.run(static_cast<std::uint32_t>(plan.restore.size()), [&](std::uint32_t i, std::uint32_t) {
      const MirrorPage& page = plan.restore[i];
      if (page.dp_group != program_.dp_group) return;
      missing[i] = copier_->restore(page) ? 0 : 1;
      if (observer_.progress) observer_.progress();
    });
    if (!communicator.all_reduce_sum(std::span<std::int64_t>(missing))) return std::nullopt;
    for (std::size_t i = 0; i < missing.size(); ++i)
      if (missing[i] > 0) unrestored.push_back({plan.restore[i].dp_group, plan.restore[i].slot});
    std::sort(unrestored.begin(), unrestored.end());
    return unrestored;
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

  // Once an epoch: together the ranks must be the whole model.
  Status meet(Communicator& communicator, EpochId epoch) {
    const DecoderSpec& spec = model_->spec;
    const ModelShape shape{spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary};
    std::vector<std::int64_t> told = introduce(config_.placement, shape);
    if (!communicator.all_reduce_sum(std::span<std::int64_t>(told))) {
      rows_.lose();
      return interrupted();
    }
    auto parts = vocabulary_parts(told, config_.placement, shape);
    if (!parts) return parts.error();
    vocabulary_parts_ = std::move(*parts);
    const std::vector<std::uint32_t> copies = expert_copies(told, config_.placement, shape);
    step_counter_.know_copies(copies);
    tracer_.know_homes(expert_homes(told, config_.placement, shape));
    control_.begin_epoch(copies);
    met_epoch_ = epoch;
    return Ok{};
  }

  StepBatch lay_out(const StepPlan& plan) {
    StepBatch batch;
    batch.all_logits = static_cast<bool>(observer_.logits);
    for (const RowWork& work : plan.work) {
      const RowState& row = rows_.at(work.row);
      for (std::uint32_t i = 0; i < work.count; ++i)
        batch.tokens.push_back({work.start + i, work.tokens.empty() ? row.drawn_token : work.tokens[i], &row.pages, row.dp_group});
      if (work.sample && damaged_row_ == work.row) {
        batch.damaged = batch.tokens.size() - 1;
        damaged_row_.reset();
      }
      for (std::uint32_t back = work.draws; work.sample && back > 0; --back)
        batch.sampled.push_back(static_cast<std::uint32_t>(batch.tokens.size()) - back);
    }
    return batch;
  }

  StepResult finish(const StepPlan& plan, StepBatch& batch) {
    // Each with how many positions in front of the row's last draw it is.
    std::vector<std::pair<const RowWork*, std::uint32_t>> sampled;
    for (const RowWork& work : plan.work) {
      rows_.at(work.row).advance(work);
      for (std::uint32_t back = work.draws; work.sample && back > 0; --back) sampled.emplace_back(&work, back - 1);
    }
    StepResult result{plan.step, plan.epoch, std::vector<DrawnToken>(sampled.size())};
    std::vector<std::optional<TokenLogprobs>> told(sampled.size());
    pool_.run(static_cast<std::uint32_t>(sampled.size()), [&](std::uint32_t i, std::uint32_t) {
      const auto [work, back] = sampled[i];
      RowState& row = rows_.at(work->row);
      const std::size_t index = batch.all_logits ? batch.sampled[i] : i;
      const std::span<float> logits(batch.logits.data() + index * program_.vocabulary, program_.vocabulary);
      // Nobody reads the row's logits any more: observers have seen them as the model made them.
      adjust(logits, row.sampling, row.seen ? row.seen->list() : std::span<const SeenToken>());
      std::vector<std::uint32_t> legal;
      if (!work->mask.empty()) legal = *decode_mask(work->mask, program_.vocabulary);  // checked before the step began
      const auto token = draw(logits, row.sampling, row.drawn_position - back, legal);
      // A void draw may still be the source of a step that is already planned; any token will do, the request fails.
      if (back == 0) row.drawn_token = token.value_or(0);
      if (row.seen) row.seen->add_output(token.value_or(0));
      if (token && row.sampling.logprobs) told[i] = logprobs_of(logits, *token, row.sampling.top_logprobs, legal);
      result.drawn[i] = {work->row, row.request, token.value_or(0), !token.has_value()};
    });
    for (std::size_t i = 0; i < told.size(); ++i)
      if (told[i]) append_logprobs(result.logprobs, {result.drawn[i].request, std::move(*told[i])});
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
  ControlledRouting control_;
  StepCounter step_counter_;
  RoutingTracer tracer_;
  bool can_count_steps_;
  OpRunner runner_;
  std::optional<MirrorCopier> copier_;   // none without a mirror
  std::optional<RowIndex> damaged_row_;  // by damage(): its next draw's activations are void
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
  if (auto status = check(config.control); !status) return status.error();
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
