// What a seed means: a grid, tiny pools, clients, and which faults there are. Pools hold one to four requests of full length, so that preemption,
// eviction and sharing happen all the time.
#include <algorithm>

#include "tests/simulation/stage.hpp"

namespace althing::tests {
namespace {

scheduler::CoreConfig core_of(Dice& dice) {
  scheduler::CoreConfig config;
  Limits& l = config.limits;
  l.rows_max = dice.between(2, 8);
  l.step_tokens_max = l.rows_max + dice.between(4, dice.one_in(3) ? 200 : 40);
  l.prefill_chunk_max = dice.between(4, l.step_tokens_max);
  l.steps_in_flight_max = dice.one_in(4) ? 1 : 2;
  l.sequences_max = l.rows_max + dice.between(4, 24);
  l.context_tokens_max = dice.between(24, 128);
  l.completion_tokens_max = 64;
  if (dice.one_in(2)) l.speculation_tokens_max = dice.between(1, 6), l.draft_model = dice.one_in(2);
  l.priority_ms = dice.between(20, 400);
  l.deadline_near_ms = dice.between(50, 1'000);
  l.tenant_sequences_max = dice.one_in(4) ? l.sequences_max / 2 : 0;
  config.vocabulary = dice.one_in(3) ? dice.between(2, 5) : 64;  // few words are often guessed
  const std::uint32_t groups = dice.between(1, 2);
  std::uint32_t one_request = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    KvGroup group;
    group.window = g == 0 && !dice.one_in(4) ? 0 : dice.between(4, 24);
    group.tokens_per_page = 1u << dice.between(1, 3);
    group.layers = {g};
    const std::uint32_t tokens = group.window == 0 ? l.context_tokens_max : std::min(l.context_tokens_max, group.window + group.tokens_per_page);
    one_request += tokens / group.tokens_per_page + 1;
    config.kv.groups.push_back(group);
  }
  config.kv.page_bytes = 64;
  config.kv.page_count = one_request + dice.between(0, one_request * (dice.one_in(2) ? 0 : 2));
  if (!dice.one_in(3)) config.mirror_slots = dice.one_in(2) ? dice.between(1, one_request) : 6 * one_request;
  config.mirror_identity = dice.bits();
  config.share_prefixes = !dice.one_in(4);
  return config;
}

void set_grids(ClusterSetup& setup, Dice& dice) {
  const std::uint32_t dp = dice.one_in(2) ? 1 : dice.between(2, 3), tp = dice.between(1, 2);
  setup.core.dp_groups = dp;
  for (std::uint32_t groups = dp; groups >= 1; --groups) setup.grids.push_back(Grid{groups * tp, groups, tp, 1, {}});
  if (tp > 1 && dice.one_in(2)) setup.grids.push_back(Grid{1, 1, 1, 1, {}});
  setup.spares = dice.one_in(4) ? 1 : 0;
  setup.shrink = dice.one_in(2);
  setup.smaller_pools = dice.one_in(3);
}

// So many of each kind in a run of this length, about.
FaultRates rates_of(Dice& dice, std::uint64_t length_us) {
  const auto rate = [&](std::uint32_t most) {
    return dice.one_in(2) ? 0u : static_cast<std::uint32_t>(std::min<std::uint64_t>(length_us / dice.between(1, most), 60'000'000));
  };
  FaultRates rates;
  if (dice.one_in(8)) return rates;  // nothing ever goes wrong
  rates.rank_dies = rate(6);
  rates.rank_hangs = rate(4);
  rates.core_dies = rate(5);
  rates.plan_lost = rate(5);
  rates.result_lost = rate(5);
  rates.false_alarm = rate(8);
  rates.mirror_drop = dice.maybe(5, 50);
  rates.mirror_damage = dice.maybe(5, 100);
  return rates;
}

ClientHabits habits_of(Dice& dice) {
  ClientHabits habits;
  habits.cancel = dice.maybe(4, 30);
  habits.vanish = dice.maybe(10, 60);
  habits.slow = dice.maybe(3, 20);
  habits.deadline = dice.maybe(3, 20);
  habits.stop = dice.maybe(3, 10);
  habits.choices = dice.maybe(4, 12);
  habits.penalty = dice.maybe(3, 10);
  habits.trace = dice.maybe(10, 40);
  habits.stop_token = dice.maybe(2, 6);
  habits.grammar = dice.maybe(3, 10);
  habits.repeat = dice.maybe(2, 4);
  return habits;
}

}  // namespace

ClusterSetup setup_of(std::uint64_t seed, std::uint32_t requests) {
  Dice dice(seed);
  ClusterSetup setup;
  setup.core = core_of(dice);
  set_grids(setup, dice);
  setup.step_us = dice.between(500, 8'000);
  setup.token_us = dice.between(0, 200);
  setup.local_us = dice.between(1, 400);
  setup.net_us = dice.between(20, 2'000);
  setup.slow_message = dice.maybe(20, 200);
  setup.respawn_us = dice.between(20, 400) * 1000;
  setup.core_restart_us = dice.between(10, 150) * 1000;
  setup.step_timeout_ms = dice.between(400, 2'000);
  setup.credit = dice.one_in(2) ? 0 : dice.between(2, 12);
  setup.habits = habits_of(dice);

  const Limits& limits = setup.core.limits;
  workload::Spec& work = setup.workload;
  work.kind = static_cast<workload::Kind>(dice.between(0, workload::kind_count - 1));
  work.asks = requests;
  work.tenants = dice.between(1, 4);
  work.prompt_mean = dice.between(2, limits.context_tokens_max / (dice.one_in(2) ? 3 : 8));
  work.prompt_max = limits.context_tokens_max - 1;
  work.answer_mean = dice.between(2, 32);
  work.answer_max = std::min(limits.completion_tokens_max, limits.context_tokens_max / 2);
  // From a third of what the cluster can do to half as much again; repairs come on top.
  const std::uint64_t steps = work.answer_mean + work.prompt_mean / limits.prefill_chunk_max + 1;
  const std::uint64_t alone_us = steps * (setup.step_us + 2 * setup.net_us / 3);
  work.distance_us = std::max<std::uint64_t>(alone_us / limits.rows_max / setup.core.dp_groups * dice.between(80, 500) / 100, 100);
  const std::uint64_t arrivals_us = work.distance_us * requests;
  setup.asks_from_us = setup.respawn_us * dice.between(50, 200) / 100;
  setup.faults = rates_of(dice, arrivals_us);
  setup.faults_until_us = setup.asks_from_us + arrivals_us * dice.between(50, 130) / 100;
  if (dice.one_in(8)) setup.drain_at_us = setup.asks_from_us + arrivals_us * dice.between(30, 100) / 100;
  return setup;
}

}  // namespace althing::tests
