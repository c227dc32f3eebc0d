// See the header.
#include "tests/support/local_engine.hpp"

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
  auto placements = scheduler::place(options.ranks, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements) return placements.error();
  Limits limits = options.limits;
  limits.context_tokens_max = std::min(limits.context_tokens_max, spec.context_tokens_max);
  auto kv = gpu::kv_layout(spec, *placements, gpu::kv_format(options.device), options.kv_bytes, limits.context_tokens_max);
  if (!kv) return kv.error();
  std::unique_ptr<LocalEngine> engine(new LocalEngine);
  auto core = scheduler::Core::create({limits, *kv, spec.vocabulary});
  if (!core) return core.error();
  engine->core_ = std::move(*core);
  auto segment = gpu::SharedSegment::create(options.ranks, EpochId{1});
  if (!segment) return segment.error();
  engine->segment_ = std::make_unique<gpu::SharedSegment>(std::move(*segment));
  for (const RankPlacement& placement : *placements) {
    auto executor =
        gpu::Executor::create(model, {placement, *kv, limits, options.threads, options.device, gpu::DenseFormat::bf16, placement.rank.value});
    if (!executor) return executor.error();
    engine->executors_.push_back(std::move(*executor));
    engine->communicators_.push_back(engine->segment_->join(placement.rank, std::chrono::seconds(60)));
  }
  engine->feed(RanksReady{EpochId{1}});
  return engine;
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
  if (const auto* step = std::get_if<RunStep>(&effect)) queued_.push_back(step->plan);
  if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) {
    std::vector<TokenId>& tokens = running_[drawn->request].tokens;
    tokens.insert(tokens.end(), drawn->tokens.begin(), drawn->tokens.end());
  }
  const auto end = [&](RequestId request, FinishReason reason, const Error& error) {
    Completion completion = std::move(running_[request]);
    running_.erase(request);
    completion.reason = reason;
    completion.error = error;
    done_[request] = std::move(completion);
  };
  if (const auto* finished = std::get_if<Finished>(&effect)) end(finished->request, finished->reason, finished->error);
  if (const auto* rejected = std::get_if<Rejected>(&effect)) end(rejected->request, FinishReason::error, rejected->error);
}

void LocalEngine::run_front_step() {
  const StepPlan plan = std::move(queued_.front());
  queued_.erase(queued_.begin());
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
