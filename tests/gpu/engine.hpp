// All ranks of a model in one process, for tests: executors on threads with a shared segment between them, and a tiny stand-in for the scheduler
// that gives rows pages in a scattered order. Every rank must answer alike; a difference is a failure of the step.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gpu/comm/shared_memory_communicator.hpp"
#include "gpu/comm/solo_communicator.hpp"
#include "gpu/executor.hpp"
#include "scheduler/placement.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"

namespace althing::tests {

inline ModelShape shape_of(const gpu::DecoderSpec& spec) { return {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary}; }

struct EngineOptions {
  std::uint32_t ranks = 1;
  std::optional<Grid> grid = std::nullopt;  // instead of `ranks`: how they are laid out
  std::uint32_t threads = 1;
  std::uint32_t rows_max = 8;
  std::uint32_t step_tokens_max = 512;
  std::uint32_t context_tokens_max = 512;
  gpu::Device device = gpu::Device::cpu;
  std::uint32_t page_seed = 1;     // order in which free pages are handed out
  std::uint32_t mirror_pages = 0;  // room for so many in the KV mirror of each rank
  gpu::ExpertControl control{};
  std::shared_ptr<const gpu::SyntheticScript> script{};
  bool count_steps = true;                         // on every rank, so that run() compares what they counted, too
  std::shared_ptr<const gpu::DraftModel> draft{};  // on the first rank
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const gpu::Model> model, const EngineOptions& options) {
    auto engine = std::unique_ptr<Engine>(new Engine);
    const Grid grid = options.grid.value_or(scheduler::default_grid(options.ranks));
    auto placements = scheduler::place(grid, shape_of(model->spec));
    if (!placements) return placements.error();
    engine->dp_groups_ = grid.dp;
    const std::uint32_t context = std::min(options.context_tokens_max, model->spec.context_tokens_max);
    // Grow the pool until every row can have all its pages in every group at once: window pages are not given back here.
    auto layout = gpu::kv_layout(model->spec, *placements, gpu::kv_format(options.device), std::uint64_t{1} << 30, context);
    if (!layout) return layout.error();
    std::uint32_t pages = 0;
    for (const KvGroup& group : layout->groups) pages += (context + group.tokens_per_page - 1) / group.tokens_per_page;
    layout->page_count = pages * options.rows_max;
    engine->layout_ = *layout;
    engine->context_ = context;
    gpu::ExecutorConfig config;
    config.kv = *layout;
    config.threads = options.threads;
    config.device = options.device;
    config.control = options.control;
    config.script = options.script;
    config.count_steps = options.count_steps;
    config.limits.rows_max = options.rows_max;
    config.limits.step_tokens_max = options.step_tokens_max;
    config.limits.context_tokens_max = context;
    for (const RankPlacement& placement : *placements) {
      config.placement = placement;
      config.gpu = placement.rank.value;
      config.draft = placement.rank.value == 0 ? options.draft : nullptr;
      if (options.mirror_pages > 0) {
        const std::uint64_t bytes = (std::uint64_t{options.mirror_pages} + 1) * (layout->page_bytes + 64) + 8192;
        auto memory = gpu::MirrorMemory::create(bytes, {1, 2});
        if (!memory) return memory.error();
        auto mirror = gpu::MirrorMemory::adopt(::dup(memory->descriptor()), placement.rank.value, layout->page_bytes);
        if (!mirror) return mirror.error();
        (*mirror)->take();
        config.mirror = *mirror;
        engine->mirrors_.push_back(*mirror);
      }
      auto executor = gpu::Executor::create(model, config);
      if (!executor) return executor.error();
      engine->executors_.push_back(std::move(*executor));
    }
    for (std::uint32_t p = 0; p < layout->page_count; ++p) engine->free_pages_.push_back(PageId{p});
    std::shuffle(engine->free_pages_.begin(), engine->free_pages_.end(), std::mt19937(options.page_seed));
    if (auto status = engine->enter_epoch(1); !status) return status.error();
    return engine;
  }

  // The first plan that follows is a snapshot: rows and pages are free again.
  Status enter_epoch(std::uint64_t epoch) {
    communicators_.clear();
    while (!held_pages_.empty()) give_back(held_pages_.begin()->first);
    epoch_ = EpochId{epoch};
    step_ = 0;
    snapshot_ = true;
    if (executors_.size() == 1) {
      communicators_.push_back(gpu::solo_communicator(epoch_));
      return Ok{};
    }
    auto segment = gpu::SharedSegment::create(static_cast<std::uint32_t>(executors_.size()), epoch_);
    if (!segment) return segment.error();
    for (std::uint32_t r = 0; r < executors_.size(); ++r) communicators_.push_back(segment->join(RankId{r}, std::chrono::seconds{300}));
    return Ok{};
  }

  gpu::Executor& executor(std::size_t rank) { return *executors_[rank]; }
  gpu::MirrorMemory& mirror(std::size_t rank) { return *mirrors_[rank]; }
  // The page of a row's table.
  PageId page(std::uint32_t row, std::uint32_t group, std::uint32_t index) const { return tables_.at(row)[group][index]; }
  gpu::Communicator& communicator(std::size_t rank) { return *communicators_[rank]; }
  std::size_t ranks() const { return executors_.size(); }
  const KvLayout& layout() const { return layout_; }
  EpochId epoch() const { return epoch_; }

  // A plan on top of the last one; callers fill it.
  StepPlan next_plan() {
    StepPlan plan;
    plan.epoch = epoch_;
    plan.snapshot = snapshot_;
    plan.base = StepId{step_};
    plan.step = StepId{step_ + 1};
    return plan;
  }

  // Sets `row` in `plan` with pages for `tokens` positions in every KV group. Rows go round the DP groups.
  void admit(StepPlan& plan, std::uint32_t row, std::uint64_t request, const SamplingParameters& sampling, std::uint32_t tokens,
             std::uint32_t trace_top_m = 0, const std::vector<TokenId>& known = {}, std::uint32_t prompt_count = 0) {
    plan.set.push_back({RowIndex{row}, RequestId{request}, sampling, DpGroup{row % dp_groups_}, trace_top_m, known, prompt_count});
    for (std::uint32_t g = 0; g < layout_.groups.size(); ++g) {
      const std::uint32_t count = (tokens + layout_.groups[g].tokens_per_page - 1) / layout_.groups[g].tokens_per_page;
      PageGrant grant{RowIndex{row}, g, 0, {}};
      for (std::uint32_t i = 0; i < count; ++i) {
        grant.pages.push_back(free_pages_.back());
        free_pages_.pop_back();
      }
      tables_[row].resize(layout_.groups.size());
      tables_[row][g] = grant.pages;
      auto& held = held_pages_[row];
      held.insert(held.end(), grant.pages.begin(), grant.pages.end());
      plan.pages.push_back(std::move(grant));
    }
  }

  // Frees `row` in `plan`. Its pages are the last to be handed out again, so a row that comes back gets others.
  void clear(StepPlan& plan, std::uint32_t row) {
    plan.cleared.push_back(RowIndex{row});
    give_back(row);
  }

  // Runs the plan on all ranks. The first rank's answer, or an error when ranks disagree.
  Result<StepResult> run(const StepPlan& plan) {
    std::vector<Result<StepResult>> results(executors_.size(), Error{});
    if (executors_.size() == 1) {
      results[0] = executors_[0]->run(plan, *communicators_[0]);
    } else {
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < executors_.size(); ++r) threads.emplace_back([&, r] { results[r] = executors_[r]->run(plan, *communicators_[r]); });
      for (auto& thread : threads) thread.join();
    }
    for (auto& result : results)
      if (!result) return result.error();
    for (auto& result : results)
      if (!(untimed(*result) == untimed(*results[0]))) return Error{ErrorCode::internal, "ranks drew different tokens", {}};
    step_ = plan.step.value;
    snapshot_ = false;
    return results[0];
  }

 private:
  Engine() = default;

  // Each rank has its own times, and the first one the guesses.
  static StepResult untimed(StepResult result) {
    result.guesses.clear();
    const std::string routing = std::exchange(result.routing, {});
    std::string_view left = routing;
    while (const auto section = next_section(left)) {
      StepRouting part = read_routing(*section).value();
      part.nanoseconds.assign(part.layers, {});
      append_routing(result.routing, RequestId{section->request}, part);
    }
    return result;
  }

  void give_back(std::uint32_t row) {
    const auto held = held_pages_.find(row);
    if (held == held_pages_.end()) return;
    free_pages_.insert(free_pages_.begin(), held->second.begin(), held->second.end());
    held_pages_.erase(held);
  }

  KvLayout layout_;
  std::uint32_t context_ = 0;
  std::uint32_t dp_groups_ = 1;
  std::vector<std::unique_ptr<gpu::Executor>> executors_;
  std::vector<std::unique_ptr<gpu::Communicator>> communicators_;
  std::vector<PageId> free_pages_;                                    // the last is handed out first
  std::map<std::uint32_t, std::vector<PageId>> held_pages_;           // by row
  std::map<std::uint32_t, std::vector<std::vector<PageId>>> tables_;  // by row and KV group; those of a row's last request
  std::vector<std::shared_ptr<gpu::MirrorMemory>> mirrors_;           // by rank
  EpochId epoch_;
  std::uint64_t step_ = 0;
  bool snapshot_ = true;
};

inline RowWork prompt_work(std::uint32_t row, std::uint32_t start, std::span<const TokenId> tokens, bool sample) {
  return {RowIndex{row}, start, static_cast<std::uint32_t>(tokens.size()), {tokens.begin(), tokens.end()}, sample};
}
// One token: the one that the ranks drew themselves.
inline RowWork decode_work(std::uint32_t row, std::uint32_t position) { return {RowIndex{row}, position, 1, {}, true}; }

}  // namespace althing::tests
