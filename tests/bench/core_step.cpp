// What the scheduler core itself costs: microseconds of host time a step (commit of one result and plan of the next), at full rows of decodes with
// and without thousands that wait, of one tenant and of many, and for prefill; and how often a step allocates. It must stay far below a decode step
// of the model (0.8 ms at best), or the ranks would wait for it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "scheduler/core.hpp"
#include "tests/support/usage.hpp"

namespace {
std::uint64_t allocations = 0;  // the program has one thread
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* place = std::malloc(bytes)) return place;
  throw std::bad_alloc();
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }

namespace althing::bench {
namespace {

constexpr std::uint32_t steps = 4000;

struct Load {
  std::uint32_t rows = 1, prompt_tokens = 64, completion_tokens = steps + 200;
  std::uint32_t waiting = 0;  // besides those that run
  std::uint32_t tenants = 1;
  std::uint32_t skip = 100;
};

scheduler::CoreConfig config_for(std::uint32_t rows, std::uint32_t waiting) {
  scheduler::CoreConfig config;
  config.limits.rows_max = rows;
  config.limits.step_tokens_max = std::max(512u, rows);
  config.limits.sequences_max = std::max(256u, rows + waiting);
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
  double allocations = 0;  // a step
  std::uint64_t step_count = 0;
};

Timing time_steps(const Load& load) {
  auto core = scheduler::Core::create(config_for(load.rows, load.waiting));
  if (!core.ok()) {
    std::fprintf(stderr, "%s\n", core.error().message.c_str());
    return {};
  }
  std::vector<RequestId> row_requests(load.rows);
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
  for (std::uint32_t i = 0; i < load.rows + load.waiting; ++i) {
    Submitted s;
    s.request = RequestId{i + 1};
    s.tenant = TenantId{i % load.tenants};
    s.prompt.assign(load.prompt_tokens, 7);
    s.sampling.completion_tokens_max = load.completion_tokens;
    take((*core)->on(s));
  }
  take((*core)->on(RanksReady{EpochId{1}}));
  std::vector<double> samples;
  std::uint64_t allocated = 0;
  while (next < plans.size() && next < load.skip + steps) {
    const Event event = StepDone{answer(plans[next], row_requests)};
    const std::uint64_t before = allocations;
    const auto begin = std::chrono::steady_clock::now();
    const auto effects = (*core)->on(event);
    const auto end = std::chrono::steady_clock::now();
    if (next >= load.skip) allocated += allocations - before;
    take(effects);
    if (next++ >= load.skip) samples.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() * 99 / 100], static_cast<double>(allocated) / static_cast<double>(samples.size()),
          samples.size()};
}

void print(const char* kind, const Load& load) {
  const Timing timing = time_steps(load);
  std::printf("%-8s %4u rows %6u waiting %5u tenants  median %7.2f us  p99 %7.2f us  %6.1f allocations per step (commit + plan), %llu steps\n", kind,
              load.rows, load.waiting, load.tenants, timing.median_us, timing.p99_us, timing.allocations,
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
  for (const std::uint32_t rows : {1u, 16u, 64u, 256u, 1024u}) print("decode", Load{.rows = rows});
  for (const std::uint32_t tenants : {1u, 8u, 1000u}) print("decode", Load{.rows = 256, .waiting = 10'000, .tenants = tenants});
  for (const std::uint32_t rows : {1u, 32u, 64u}) print("prefill", Load{.rows = rows, .prompt_tokens = 4000, .completion_tokens = 1, .skip = 2});
  return 0;
}
