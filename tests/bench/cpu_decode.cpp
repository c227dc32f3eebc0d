// Tokens per second of the CPU backend on one model folder, decoding greedily at batch 1 and 32 with one rank.
// Beside wall time stands processor time: on a busy machine only the latter says what the code costs.
// Usage: cpu_decode [MODEL_FOLDER] [THREADS] [STEPS]. Prints the processor's name beside the numbers: they mean nothing without it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "gpu/models/gpt_oss.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/support/usage.hpp"

namespace althing::tests {
namespace {

using Clock = std::chrono::steady_clock;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Returns false after printing why.
bool measure(std::shared_ptr<const gpu::Model> model, std::uint32_t batch, std::uint32_t threads, std::uint32_t steps) {
  constexpr std::uint32_t prompt = 16;
  EngineOptions options;
  options.threads = threads;
  options.rows_max = batch;
  options.step_tokens_max = batch * prompt;
  options.context_tokens_max = prompt + steps + 1;
  auto engine = Engine::create(model, options);
  if (!engine) return std::printf("%s\n", engine.error().message.c_str()), false;
  StepPlan plan = (*engine)->next_plan();
  for (std::uint32_t row = 0; row < batch; ++row) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < prompt; ++i) tokens.push_back((row * 131 + i * 17 + 5) % model->spec.vocabulary);
    (*engine)->admit(plan, row, row + 1, {}, options.context_tokens_max);
    plan.work.push_back(prompt_work(row, 0, tokens, true));
  }
  const auto before = Clock::now();
  if (auto result = (*engine)->run(plan); !result) return std::printf("%s\n", result.error().message.c_str()), false;
  const double prefill = seconds_since(before);
  const auto start = Clock::now();
  const double busy = processor_seconds();
  for (std::uint32_t step = 0; step < steps; ++step) {
    StepPlan next = (*engine)->next_plan();
    for (std::uint32_t row = 0; row < batch; ++row) next.work.push_back(decode_work(row, prompt + step));
    if (auto result = (*engine)->run(next); !result) return std::printf("%s\n", result.error().message.c_str()), false;
  }
  const double decode = seconds_since(start), used = processor_seconds() - busy;
  std::printf("batch %2u, %u thread(s): decode %8.1f tok/s (%.3f ms a step), %8.1f tokens a processor second, prefill %8.1f tok/s\n", batch, threads,
              batch * steps / decode, decode * 1000 / steps, batch * steps / used, batch * prompt / prefill);
  return true;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cpu_decode [MODEL_FOLDER [THREADS [STEPS]]]\n"
                             "Tokens a second of the CPU backend at batches of 1 and 32."))
    return 0;
  const std::string folder = argc > 1 ? argv[1] : ALTHING_SOURCE_DIR "/examples/models/tiny";
  const auto number = [&](int index, std::uint32_t otherwise) {
    return argc > index ? static_cast<std::uint32_t>(std::strtoul(argv[index], nullptr, 10)) : otherwise;
  };
  const std::uint32_t threads = number(2, 1), steps = number(3, 200);
  auto model = althing::gpu::load_gpt_oss(folder);
  if (!model) return std::printf("%s\n", model.error().message.c_str()), 1;
  std::printf("%s on %s\n", folder.c_str(), althing::tests::processor_name().c_str());
  for (const std::uint32_t batch : {1u, 32u})
    if (!althing::tests::measure(*model, batch, threads, steps)) return 1;
  return 0;
}
