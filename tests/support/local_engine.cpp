// See the header.
#include "tests/support/local_engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "scheduler/placement.hpp"

namespace althing::tests {

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(std::shared_ptr<const gpu::Model> model, const Options& options) {
  const gpu::DecoderSpec& spec = model->spec;
  auto placements = scheduler::place(options.grid, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements) return placements.error();
  Limits limits = options.limits;
  limits.context_tokens_max = std::min(limits.context_tokens_max, spec.context_tokens_max);
  limits.draft_model = options.draft != nullptr;
  auto kv = gpu::kv_layout(spec, *placements, gpu::kv_format(options.device), options.kv_bytes, limits.context_tokens_max);
  if (!kv) return kv.error();
  std::unique_ptr<LocalEngine> engine(new LocalEngine);
  engine->model_ = model;
  engine->options_ = options;
  engine->options_.limits = limits;
  engine->placements_ = std::move(*placements);
  engine->kv_ = *kv;
  const std::uint32_t slots = gpu::MirrorMemory::slots_in(options.mirror_bytes, kv->page_bytes);
  for (std::uint32_t rank = 0; slots > 0 && rank < options.grid.world; ++rank) {
    auto mirror = gpu::MirrorMemory::create(options.mirror_bytes, {17, 4});
    if (!mirror) return mirror.error();
    engine->mirrors_.push_back(std::move(*mirror));
  }
  auto core = scheduler::Core::create({limits, *kv, spec.vocabulary, options.grid.dp, slots, 1, options.share_prefixes});
  if (!core) return core.error();
  engine->core_ = std::move(*core);
  engine->rows_set_.resize(options.grid.dp);
  if (auto status = engine->start_ranks(); !status) return status.error();
  return engine;
}

Status LocalEngine::start_ranks() {
  executors_.clear();
  communicators_.clear();
  queued_.clear();
  auto segment = gpu::SharedSegment::create(options_.grid.world, EpochId{++epoch_});
  if (!segment) return segment.error();
  segment_ = std::make_unique<gpu::SharedSegment>(std::move(*segment));
  std::vector<MirroredPage> everywhere;
  for (const RankPlacement& placement : placements_) {
    const std::uint32_t rank = placement.rank.value;
    gpu::ExecutorConfig config{placement, kv_, options_.limits, options_.threads, options_.device, gpu::DenseFormat::bf16, rank};
    if (!mirrors_.empty()) {
      auto mirror = gpu::MirrorMemory::adopt(::dup(mirrors_[rank].descriptor()), rank, kv_.page_bytes);
      if (!mirror) return mirror.error();
      config.mirror = std::move(*mirror);
    }
    if (rank == 0 && options_.draft) {
      const gpu::DecoderSpec& spec = options_.draft->spec;
      auto own = scheduler::place(1, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
      if (!own) return own.error();
      config.draft = std::make_shared<const gpu::DraftModel>(gpu::DraftModel{options_.draft, (*own)[0]});
    }
    auto executor = gpu::Executor::create(model_, config);
    if (!executor) return executor.error();
    executors_.push_back(std::move(*executor));
    communicators_.push_back(segment_->join(placement.rank, std::chrono::seconds(60)));
    // Where all ranks are one group, what they all have; otherwise nothing, which is always true.
    const std::vector<MirroredPage> here = executors_.back()->take_mirror();
    if (rank == 0) everywhere = here;
    std::erase_if(everywhere, [&](const MirroredPage& page) { return std::find(here.begin(), here.end(), page) == here.end(); });
  }
  feed(RanksReady{EpochId{epoch_}, std::nullopt, {17, 4}, everywhere});
  return Ok{};
}

Status LocalEngine::lose_ranks() {
  feed(RanksLost{EpochId{epoch_}});
  return start_ranks();
}

void LocalEngine::submit(const Submitted& request) {
  running_[request.request];
  feed(request);
}

bool LocalEngine::step() {
  if (queued_.empty()) return false;
  run_front_step();
  return true;
}

LocalEngine::~LocalEngine() = default;

std::vector<LocalEngine::Completion> LocalEngine::run(const std::vector<Submitted>& requests) {
  running_.clear();
  done_.clear();
  for (const Submitted& request : requests) {
    running_[request.request];
    feed(request);
  }
  while (!running_.empty() && !queued_.empty()) run_front_step();
  std::vector<Completion> completions;
  for (const Submitted& request : requests) completions.push_back(std::move(done_[request.request]));
  return completions;
}

void LocalEngine::feed(const Event& event) {
  const auto began = std::chrono::steady_clock::now();
  const auto effects = core_->on(event);
  core_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::vector<Effect> copy(effects.begin(), effects.end());
  for (const Effect& effect : copy) perform(effect);
}

void LocalEngine::perform(const Effect& effect) {
  if (const auto* step = std::get_if<RunStep>(&effect)) {
    for (const RowSetup& setup : step->plan.set) ++rows_set_[setup.dp_group.value];
    queued_.push_back(step->plan);
  }
  if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) {
    std::vector<TokenId>& tokens = running_[drawn->request].tokens;
    tokens.insert(tokens.end(), drawn->tokens.begin(), drawn->tokens.end());
  }
  const auto end = [&](RequestId request, FinishReason reason, const Error& error, const Usage& usage = {}) {
    Completion completion = std::move(running_[request]);
    running_.erase(request);
    completion.reason = reason;
    completion.error = error;
    completion.usage = usage;
    done_[request] = std::move(completion);
  };
  if (const auto* finished = std::get_if<Finished>(&effect)) end(finished->request, finished->reason, finished->error, finished->usage);
  if (const auto* rejected = std::get_if<Rejected>(&effect)) end(rejected->request, FinishReason::error, rejected->error);
}

void LocalEngine::run_front_step() {
  const StepPlan plan = std::move(queued_.front());
  queued_.erase(queued_.begin());
  for (const RowSetup& setup : plan.set) rows_[setup.row] = setup.request;
  gpu::Observer observer;
  if (watcher_)
    observer.logits = [&](std::span<const float> logits) {
      std::size_t tokens = 0, at = 0;
      for (const RowWork& work : plan.work) tokens += work.count;
      const std::size_t width = logits.size() / tokens;
      for (const RowWork& work : plan.work)
        for (std::uint32_t i = 0; i < work.count; ++i) watcher_(rows_.at(work.row), work.start + i, logits.subspan(at++ * width, width));
    };
  executors_[0]->observe(observer);
  // The others compute as many, since they are gathered from all.
  if (watcher_) observer.logits = [](std::span<const float>) {};
  for (std::size_t rank = 1; rank < executors_.size(); ++rank) executors_[rank]->observe(observer);
  std::vector<std::thread> threads;
  std::vector<Result<StepResult>> results(executors_.size(), StepResult{});
  const auto run_rank = [&](std::size_t rank) { results[rank] = executors_[rank]->run(plan, *communicators_[rank]); };
  for (std::size_t rank = 1; rank < executors_.size(); ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (result && result->drawn == results[0]->drawn) continue;
    // A bug of the engine: nothing after it would mean anything.
    std::fprintf(stderr, "step %llu: %s\n", static_cast<unsigned long long>(plan.step.value),
                 result ? "two ranks drew different tokens" : result.error().message.c_str());
    std::abort();
  }
  feed(StepDone{*results[0]});
}

}  // namespace althing::tests
