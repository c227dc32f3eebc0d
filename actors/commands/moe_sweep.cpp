// See the header. The dropless model goes first in every step and says which tokens come next; each setting is fed the same tokens, so its logits can
// be compared with the dropless ones token by token, whatever it would have written itself.
#include "actors/commands/moe_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "actors/commands/moe_batch.hpp"
#include "actors/complain.hpp"
#include "actors/expert_control_text.hpp"
#include "monitoring/json_line.hpp"

namespace althing::actors {
namespace {

struct Setting {
  std::string name;  // of the policy, or dynamic k
  gpu::ExpertControl control;
};

struct Row {
  double p50_ms = 0, p95_ms = 0, p99_ms = 0;
  gpu::ControlCounts counts;
  double divergence = 0;  // mean over tokens of KL(dropless || setting), nats
  double match = 0;       // share of tokens whose most likely successor is the same
};

Result<std::vector<Setting>> settings_of(const MoeSweepSettings& s) {
  std::vector<Setting> all;
  for (const double temperature : s.temperatures) {
    gpu::ExpertControl control;
    control.router_temperature = static_cast<float>(temperature);
    control.capacity_multiple = s.capacity_multiple;
    all.push_back({"none", control});
    for (const std::string& name : s.policies) {
      auto policy = overflow_policy_of(name, "policies");
      if (!policy) return policy.error();
      if (*policy == gpu::OverflowPolicy::none) continue;  // it is always measured
      control.overflow = *policy;
      for (const double factor : s.factors) {
        control.capacity_factor = factor;
        all.push_back({name, control});
      }
    }
  }
  for (const std::string& text : s.dynamic_k) {
    gpu::ExpertControl control;
    if (auto status = set_dynamic_k(control, text); !status) return status.error();
    all.push_back({text, control});
  }
  for (const Setting& setting : all)
    if (auto status = check(setting.control); !status) return status.error();
  return all;
}

// Adds up over the rows of one step. KL is taken in double from the logits; -infinity does not occur, a NaN shows in the sum.
void compare(const std::vector<float>& dropless, const std::vector<float>& other, std::uint32_t rows, Row& row) {
  const std::size_t vocabulary = dropless.size() / rows;
  for (std::size_t r = 0; r < rows; ++r) {
    const float *p = dropless.data() + r * vocabulary, *q = other.data() + r * vocabulary;
    const float *p_best = std::max_element(p, p + vocabulary), *q_best = std::max_element(q, q + vocabulary);
    double p_sum = 0, q_sum = 0, cross = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      const double weight = std::exp(double{p[v]} - *p_best);
      p_sum += weight;
      q_sum += std::exp(double{q[v]} - *q_best);
      cross += weight * ((double{p[v]} - *p_best) - (double{q[v]} - *q_best));
    }
    row.divergence += cross / p_sum - std::log(p_sum) + std::log(q_sum);
    row.match += p_best - p == q_best - q ? 1 : 0;
  }
}

// Every step: the dropless batch first, then the setting's on the same tokens.
Result<Row> measure(const MoeModel& model, const MoeBatchSettings& settings, std::uint32_t rows, const gpu::ExpertControl& control) {
  auto dropless = start_batch(model, settings, rows, {});
  if (!dropless) return dropless.error();
  auto batch = start_batch(model, settings, rows, control);
  if (!batch) return batch.error();
  Row row;
  std::vector<double> seconds;
  std::vector<TokenId> tokens = first_tokens(model, rows);
  for (std::uint32_t step = 0; step < settings.steps; ++step) {
    if (auto reference = (*dropless)->step(tokens); !reference) return reference.error();
    auto taken = (*batch)->step(tokens);
    if (!taken) return taken.error();
    seconds.push_back(taken->seconds);
    compare((*dropless)->logits(), (*batch)->logits(), rows, row);
    tokens = draw_rows((*dropless)->logits(), rows, settings.seed, step);
  }
  row.p50_ms = 1e3 * percentile(seconds, 0.5);
  row.p95_ms = 1e3 * percentile(seconds, 0.95);
  row.p99_ms = 1e3 * percentile(seconds, 0.99);
  row.divergence /= static_cast<double>(rows) * settings.steps;
  row.match /= static_cast<double>(rows) * settings.steps;
  for (const gpu::ControlCounts& layer : (*batch)->control_counts()) row.counts += layer;
  return row;
}

double share(std::uint64_t part, std::uint64_t whole) { return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole); }

void print(const Setting& setting, std::uint32_t batch, const Row& row, bool json) {
  const gpu::ControlCounts& c = row.counts;
  const bool limited = c.room > 0;
  const double used = share(c.wanted - c.dropped - c.omitted, c.room);
  if (json) {
    monitoring::JsonLine line;
    line.add("policy", setting.name).add("batch", batch).add("temperature", double{setting.control.router_temperature});
    line.raw("capacity_factor", limited ? monitoring::json_number(setting.control.capacity_factor) : "null");
    line.add("p50_ms", row.p50_ms).add("p95_ms", row.p95_ms).add("p99_ms", row.p99_ms);
    line.add("rerouted", share(c.rerouted, c.wanted)).add("dropped", share(c.dropped, c.wanted)).add("omitted", share(c.omitted, c.wanted));
    line.raw("utilisation", limited ? monitoring::json_number(used) : "null");
    line.add("divergence_nats", row.divergence).add("match", row.match);
    std::printf("%s\n", line.object().c_str());
    return;
  }
  char factor[16] = "-", room[16] = "-";
  if (limited) std::snprintf(factor, sizeof factor, "%.2f", setting.control.capacity_factor);
  if (limited) std::snprintf(room, sizeof room, "%.1f %%", 100 * used);
  std::printf("%-10s %6s %5.2f %5u %8.2f %8.2f %8.2f %8.2f %% %7.2f %% %7.2f %% %8s %10.2e %7.1f %%\n", setting.name.c_str(), factor,
              double{setting.control.router_temperature}, batch, row.p50_ms, row.p95_ms, row.p99_ms, 100 * share(c.rerouted, c.wanted),
              100 * share(c.dropped, c.wanted), 100 * share(c.omitted, c.wanted), room, row.divergence, 100 * row.match);
}

}  // namespace

int run_moe_sweep(const MoeSweepSettings& settings) {
  auto all = settings_of(settings);
  if (!all) return complain(all.error());
  auto model = load_moe_model(settings.batch);
  if (!model) return complain(model.error());
  if (!settings.batch.json)
    std::printf("%-10s %6s %5s %5s %8s %8s %8s %10s %9s %9s %8s %10s %9s\n", "policy", "factor", "temp", "batch", "P50 ms", "P95 ms", "P99 ms",
                "rerouted", "dropped", "omitted", "used", "KL nats", "match");
  for (const std::uint32_t batch : settings.batch.batches)
    for (const Setting& setting : *all) {
      auto row = measure(*model, settings.batch, batch, setting.control);
      if (!row) return complain(row.error());
      print(setting, batch, *row, settings.batch.json);
      std::fflush(stdout);
    }
  return exit_ok;
}

}  // namespace althing::actors
