// See moe_sweep.hpp. A run is one decode step of the batch; its loads are the tokens of each expert in each layer.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "actors/commands/moe_batch.hpp"
#include "actors/commands/moe_sweep.hpp"
#include "actors/complain.hpp"
#include "monitoring/json_line.hpp"
#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::actors {
namespace {

struct Load {
  double deviation = 0;               // of an expert's tokens from its layer's mean, over experts; mean over runs and layers
  double mean = 0;                    // tokens an expert
  double active = 0;                  // experts with a token
  std::vector<std::uint64_t> total;   // (layers, experts), over all runs
  std::uint32_t most = 0, least = 0;  // tokens, of any expert in any run
  double waste_mean = 0,
         waste_min = 0;  // of a capacity that the fullest expert just fits into: 1 - mean / max and 1 - min / max, mean over runs and layers
};

void add(const StepCounts& step, Load& load) {
  load.total.resize(step.layers.size() * step.experts);
  for (std::size_t layer = 0; layer < step.layers.size(); ++layer) {
    std::vector<std::uint32_t> tokens(step.experts);
    for (const ExpertCount& count : step.layers[layer].experts) tokens[count.expert] += count.tokens;
    const double mean = static_cast<double>(step.tokens) * step.experts_per_token / step.experts;
    double squares = 0;
    for (std::size_t e = 0; e < tokens.size(); ++e) {
      squares += (tokens[e] - mean) * (tokens[e] - mean);
      load.total[layer * step.experts + e] += tokens[e];
      load.active += tokens[e] > 0 ? 1 : 0;
    }
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    load.deviation += std::sqrt(squares / step.experts);
    load.mean += mean;
    load.waste_mean += 1 - mean / *high;
    load.waste_min += 1 - static_cast<double>(*low) / *high;
    load.most = std::max(load.most, *high);
    load.least = std::min(load.least, *low);
  }
}

Result<Load> measure(const MoeModel& model, const MoeBatchSettings& settings, std::uint32_t rows) {
  auto batch = start_batch(model, settings, rows, {});
  if (!batch) return batch.error();
  Load load;
  load.least = rows;
  std::vector<TokenId> tokens = first_tokens(model, rows);
  for (std::uint32_t run = 0; run < settings.steps; ++run) {
    auto step = (*batch)->step(tokens);
    if (!step) return step.error();
    const auto counts = read_step_counts(step->counts);
    if (!counts) return Error{ErrorCode::internal, "a step came without counts of its experts", {}};
    add(*counts, load);
    tokens = draw_rows((*batch)->logits(), rows, settings.seed, run);
  }
  const double cells = static_cast<double>(settings.steps) * static_cast<double>(model.model->spec.layers.size());
  for (double* sum : {&load.deviation, &load.mean, &load.active, &load.waste_mean, &load.waste_min}) *sum /= cells;
  return load;
}

void print(std::uint32_t batch, const Load& load, std::uint32_t experts, bool json) {
  const auto [low, high] = std::minmax_element(load.total.begin(), load.total.end());
  const auto name = [&](const auto cell) {
    const auto at = static_cast<std::uint32_t>(cell - load.total.begin());
    return std::to_string(at / experts) + "/" + std::to_string(at % experts) + " (" + std::to_string(*cell) + ")";
  };
  if (json) {
    monitoring::JsonLine line;
    line.add("batch", batch).add("sigma", load.deviation).add("mean", load.mean).add("sigma_over_mean", load.deviation / load.mean);
    line.add("active_experts", load.active).add("hottest", name(high)).add("coldest", name(low)).add("most", load.most).add("least", load.least);
    line.add("waste_mean", load.waste_mean).add("waste_min", load.waste_min);
    std::printf("%s\n", line.object().c_str());
    return;
  }
  std::printf("%5u %8.3f %8.3f %8.2f %9.2f %16s %16s %6u %6u %8.1f %%\n", batch, load.deviation, load.mean, load.deviation / load.mean, load.active,
              name(high).c_str(), name(low).c_str(), load.most, load.least, 100 * load.waste_mean);
}

}  // namespace

int run_load_table(const MoeBatchSettings& settings) {
  auto model = load_moe_model(settings);
  if (!model) return complain(model.error());
  const std::uint32_t experts = model->model->spec.experts;
  if (!settings.json)
    std::printf("%5s %8s %8s %8s %9s %16s %16s %6s %6s %10s\n", "batch", "sigma", "mean", "sigma/mu", "active", "hottest (all)", "coldest (all)",
                "most", "least", "waste");
  for (const std::uint32_t batch : settings.batches) {
    auto load = measure(*model, settings, batch);
    if (!load) return complain(load.error());
    print(batch, *load, experts, settings.json);
    std::fflush(stdout);
  }
  return exit_ok;
}

}  // namespace althing::actors
