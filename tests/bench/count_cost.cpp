// What counting experts costs: the same decode steps with and without StepResult::counts, in turns within one run, so that the machine's moods hit
// both alike; what the core pays to add up a step, beside its scheduler; and how long pages with all experts of 120b take. Processor time, not wall
// time. Usage: count_cost [MODEL_FOLDER] [PAIRS] [STEPS_A_BLOCK]. Ends with 1 when the median pair costs more than 1 %, or a page takes over 50 ms.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "gpu/models/gpt_oss.hpp"
#include "monitoring/expert_monitor.hpp"
#include "tests/bench/decode_block.hpp"
#include "tests/monitoring/expert_samples.hpp"
#include "tests/support/usage.hpp"

namespace althing::tests {
namespace {

constexpr double cost_max = 0.01, page_seconds_max = 0.05;

std::optional<double> measure_steps(const std::shared_ptr<const gpu::Model>& model, std::uint32_t batch, std::uint32_t pairs, std::uint32_t steps) {
  std::unique_ptr<Engine> engines[2];
  for (const bool counting : {false, true}) {
    EngineOptions options;
    options.rows_max = batch;
    options.step_tokens_max = batch * block_prompt;
    options.context_tokens_max = block_prompt + steps + 1;
    options.count_steps = counting;
    auto engine = Engine::create(model, options);
    if (!engine) return std::printf("%s\n", engine.error().message.c_str()), std::nullopt;
    engines[counting] = std::move(*engine);
  }
  std::vector<double> ratios, plain;
  for (std::uint32_t pair = 0; pair < pairs; ++pair) {
    double seconds[2] = {};
    for (const bool counting : {pair % 2 == 0, pair % 2 != 0}) {
      const auto taken = decode_block(
          *engines[counting], pair + 2, batch, steps, [] {}, [] {});
      if (!taken) return std::nullopt;
      seconds[counting] = *taken;
    }
    ratios.push_back(seconds[1] / seconds[0] - 1);
    plain.push_back(seconds[0]);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("batch %2u: %.1f us of processor a step; counting adds %.2f %% (median of %u pairs; quartiles %.2f and %.2f)\n", batch,
              median(plain) * 1e6, 100 * ratios[pairs / 2], pairs, 100 * ratios[pairs / 4], 100 * ratios[pairs - 1 - pairs / 4]);
  return ratios[pairs / 2];
}

double time_of(int times, const auto& work) {
  const double before = processor_seconds();
  for (int i = 0; i < times; ++i) work(i);
  return (processor_seconds() - before) / times;
}

bool measure_pages() {
  monitoring::ExpertMonitor monitor({{8, 36, 128, 4}, 1.25, true, 20'000});
  monitoring::ExpertPlaces places;
  for (std::uint32_t e = 0; e < 128; ++e) places.push_back({{e / 16, e % 16}});
  monitor.layout(1, places);
  std::mt19937 random(1);
  for (const std::uint32_t tokens : {1u, 32u, 512u}) {
    const std::string bytes = bytes_of(random_step(random, 36, 128, 4, tokens));
    const double seconds = time_of(500, [&](int i) { monitor.step(bytes, i); });
    std::printf("120b, a step of %3u tokens: %zu bytes, %.1f us to add up\n", tokens, bytes.size(), seconds * 1e6);
  }
  std::size_t series = 0, bytes = 0;
  const double all = time_of(20, [&](int) {
    const auto page = monitor.all(1000);
    series = page.series, bytes = page.text.size();
  });
  const double summary = time_of(20, [&](int) { monitor.summary(1000); }), json = time_of(20, [&](int) { monitor.json(1000); });
  std::printf("120b on 8 ranks: /metrics/experts %.2f ms (%zu series, %zu bytes), the part of /metrics %.2f ms, /experts.json %.2f ms\n", all * 1e3,
              series, bytes, summary * 1e3, json * 1e3);
  return all <= page_seconds_max;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "count_cost [MODEL_FOLDER] [PAIRS] [STEPS_A_BLOCK]\n"
                             "What counting experts costs: steps with and without, in turns; what a step costs the core; pages of 120b."))
    return 0;
  const std::string folder = argc > 1 ? argv[1] : ALTHING_SOURCE_DIR "/examples/models/tiny";
  const auto number = [&](int index, std::uint32_t otherwise) {
    return argc > index ? static_cast<std::uint32_t>(std::strtoul(argv[index], nullptr, 10)) : otherwise;
  };
  const std::uint32_t pairs = std::max(3u, number(2, 41)), steps = number(3, 200);
  auto model = althing::gpu::load_gpt_oss(folder);
  if (!model) return std::printf("%s\n", model.error().message.c_str()), 1;
  bool fits = althing::tests::measure_pages();
  for (const std::uint32_t batch : {1u, 32u}) {
    const auto cost = althing::tests::measure_steps(*model, batch, pairs, steps);
    if (!cost) return 1;
    fits = fits && *cost <= althing::tests::cost_max;
  }
  return fits ? 0 : 1;
}
