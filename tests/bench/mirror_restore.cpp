// How long a stream waits after its ranks have died, with the KV mirror and without, and what the mirror costs while nothing happens. Both in one
// run, taking turns, so that a busy machine is as busy for one as for the other. Usage: mirror_restore [MODEL_FOLDER] [ROUNDS]. A line a context
// length: milliseconds from the new membership to the next token; then the steady state.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/models/gpt_oss.hpp"
#include "scheduler/placement.hpp"
#include "tests/support/local_engine.hpp"
#include "tests/support/usage.hpp"

namespace althing::tests {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

Submitted request(std::uint32_t prompt, std::uint32_t completion, std::uint32_t vocabulary) {
  Submitted s;
  s.request = RequestId{1};
  for (std::uint32_t i = 0; i < prompt; ++i) s.prompt.push_back((i * 131 + i * i * 17 + 5) % vocabulary);
  s.sampling.temperature = 0;
  s.sampling.completion_tokens_max = completion;
  s.sampling.ignore_stop = true;
  return s;
}

class Bench {
 public:
  Bench(std::shared_ptr<const gpu::Model> model, int rounds) : model_(std::move(model)), rounds_(rounds) {}

  // False after printing why.
  bool run() {
    const std::uint32_t context = model_->spec.context_tokens_max;
    for (const std::uint32_t tokens : {context / 8, context / 4, context / 2, context - 64})
      if (!losses(tokens)) return false;
    return steady_state();
  }

 private:
  std::unique_ptr<LocalEngine> engine(bool mirror) {
    LocalEngine::Options options;
    options.grid = scheduler::default_grid(1);
    options.limits.context_tokens_max = model_->spec.context_tokens_max;
    options.kv_bytes = 256u << 20;
    options.mirror_bytes = mirror ? 256u << 20 : 0;
    auto made = LocalEngine::create(model_, options);
    if (made) return std::move(*made);
    std::printf("%s\n", made.error().message.c_str());
    return nullptr;
  }

  bool losses(std::uint32_t prompt) {
    std::vector<double> with, without;
    std::vector<TokenId> expected;
    std::uint64_t restored = 0;
    for (int round = 0; round < 2 * rounds_; ++round) {
      const bool mirror = round % 2 == 0;
      const auto e = engine(mirror);
      if (!e) return false;
      e->submit(request(prompt, 8, model_->spec.vocabulary));
      const RequestId id{1};
      while (e->tokens(id).size() < 3 && e->step()) {
      }
      // What is measured is a context that has been copied; a busy machine may not have come to it yet.
      while (mirror && e->mirror_counts(0).copied + e->mirror_counts(0).skipped < e->stats().pages_mirrored) std::this_thread::yield();
      if (auto status = e->lose_ranks(); !status) return std::printf("%s\n", status.error().message.c_str()), false;
      const std::size_t known = e->tokens(id).size();
      const auto start = Clock::now();
      while (e->tokens(id).size() == known && e->step()) {
      }
      (mirror ? with : without).push_back(milliseconds_since(start));
      while (e->step()) {
      }
      if (expected.empty()) expected = e->tokens(id);
      if (e->tokens(id) != expected) return std::printf("the streams with and without a mirror differ\n"), false;
      if (mirror) restored = e->stats().tokens_restored;
    }
    std::sort(with.begin(), with.end());
    std::sort(without.begin(), without.end());
    const double fast = with[with.size() / 2], slow = without[without.size() / 2];
    std::printf("context %5u tokens: next token after %8.2f ms without a mirror, %7.2f ms with (%llu tokens restored): %.3f of the time, 1/%.1f\n",
                prompt, slow, fast, static_cast<unsigned long long>(restored), fast / slow, slow / fast);
    return true;
  }

  bool steady_state() {
    double with = 1e30, without = 1e30;
    std::vector<double> ratios;
    const std::uint32_t prompt = model_->spec.context_tokens_max / 2, completion = 200;
    gpu::MirrorCounts counts;
    for (int round = 0; round < rounds_; ++round) {
      double seconds[2] = {};
      for (const bool mirror : {round % 2 == 0, round % 2 != 0}) {
        const auto e = engine(mirror);
        if (!e) return false;
        const auto start = Clock::now();
        const auto done = e->run({request(prompt, completion, model_->spec.vocabulary)});
        seconds[mirror ? 1 : 0] = milliseconds_since(start);
        if (done[0].tokens.size() != completion) return std::printf("the run ended early: %s\n", done[0].error.message.c_str()), false;
        if (mirror) counts = e->mirror_counts(0);
      }
      without = std::min(without, seconds[0]);
      with = std::min(with, seconds[1]);
      ratios.push_back(seconds[1] / seconds[0]);
    }
    std::sort(ratios.begin(), ratios.end());
    std::printf(
        "steady state, %u tokens of prompt and %u drawn: best %.1f ms without, %.1f ms with; median of %zu pairs %+.2f %% (%llu pages copied, %llu "
        "skipped)\n",
        prompt, completion, without, with, ratios.size(), 100 * (ratios[ratios.size() / 2] - 1), static_cast<unsigned long long>(counts.copied),
        static_cast<unsigned long long>(counts.skipped));
    return true;
  }

  std::shared_ptr<const gpu::Model> model_;
  int rounds_;
};

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "mirror_restore [MODEL_FOLDER [ROUNDS]]\n"
                             "How long a stream waits after its ranks have died, with the KV mirror and without, and what the mirror costs."))
    return 0;
  const std::string folder = argc > 1 ? argv[1] : ALTHING_SOURCE_DIR "/examples/models/tiny";
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  auto model = althing::gpu::load_gpt_oss(folder);
  if (!model) return std::printf("%s\n", model.error().message.c_str()), 1;
  std::printf("one rank, one thread, on %s\n", althing::tests::processor_name().c_str());
  return althing::tests::Bench(*model, rounds).run() ? 0 : 1;
}
