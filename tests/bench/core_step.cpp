// What the scheduler core itself costs: microseconds of host time a step (commit of one result and plan of the next), at full rows of decodes
// and for prefill. It must stay far below a decode step of the model (0.8 ms at best), or the ranks would wait for it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "scheduler/core.hpp"
#include "tests/support/usage.hpp"

namespace althing::bench {
namespace {

constexpr std::uint32_t steps = 4000;

scheduler::CoreConfig config_for(std::uint32_t rows) {
  scheduler::CoreConfig config;
  config.limits.rows_max = rows;
  config.limits.step_tokens_max = std::max(512u, rows);
  config.limits.sequences_max = std::max(256u, rows);
  config.limits.context_tokens_max = 8192;
  config.limits.completion_tokens_max = 8192;
  config.vocabulary = 201'088;
  config.kv.page_bytes = 1u << 20;
  config.kv.groups = {KvGroup{0, 16, {1}}, KvGroup{128, 16, {0}}};
  config.kv.page_count = rows * 600;
  return config;
}

// The answer that a rank would give, without a rank.
StepResult answer(const StepPlan& plan, const std::vector<RequestId>& row_requests) {
  StepResult result{plan.step, plan.epoch, {}};
  for (const RowWork& work : plan.work)
    if (work.sample) result.drawn.push_back({work.row, row_requests[work.row.value], static_cast<TokenId>(plan.step.value % 1000), false});
  return result;
}

struct Timing {
  double median_us = 0;
  double p99_us = 0;
  std::uint64_t step_count = 0;
};

Timing time_steps(std::uint32_t rows, std::uint32_t prompt_tokens, std::uint32_t completion_tokens, std::uint32_t skip) {
  auto core = scheduler::Core::create(config_for(rows));
  if (!core.ok()) {
    std::fprintf(stderr, "%s\n", core.error().message.c_str());
    return {};
  }
  std::vector<RequestId> row_requests(rows);
  std::vector<StepPlan> plans;
  std::size_t next = 0;
  const auto take = [&](std::span<const Effect> effects) {
    for (const Effect& effect : effects) {
      if (const auto* run = std::get_if<RunStep>(&effect)) {
        for (const RowSetup& setup : run->plan.set) row_requests[setup.row.value] = setup.request;
        plans.push_back(run->plan);
      }
    }
  };
  for (std::uint32_t i = 0; i < rows; ++i) {
    Submitted s;
    s.request = RequestId{i + 1};
    s.prompt.assign(prompt_tokens, 7);
    s.sampling.completion_tokens_max = completion_tokens;
    take((*core)->on(s));
  }
  take((*core)->on(RanksReady{EpochId{1}}));
  std::vector<double> samples;
  while (next < plans.size() && next < skip + steps) {
    const Event event = StepDone{answer(plans[next], row_requests)};
    const auto begin = std::chrono::steady_clock::now();
    const auto effects = (*core)->on(event);
    const auto end = std::chrono::steady_clock::now();
    take(effects);
    if (next++ >= skip) samples.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() * 99 / 100], samples.size()};
}

void print(const char* kind, std::uint32_t rows, const Timing& timing) {
  std::printf("%-8s %4u rows  median %7.2f us  p99 %7.2f us  per step (commit + plan), %llu steps\n", kind, rows, timing.median_us, timing.p99_us,
              static_cast<unsigned long long>(timing.step_count));
}

}  // namespace
}  // namespace althing::bench

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "core_step\n"
                             "The scheduler's own time a step."))
    return 0;
  using namespace althing::bench;
  for (const std::uint32_t rows : {1u, 32u, 64u}) print("decode", rows, time_steps(rows, 64, steps + 200, 100));
  for (const std::uint32_t rows : {1u, 32u, 64u}) print("prefill", rows, time_steps(rows, 4000, 1, 2));
  return 0;
}
