// How long a stream waits after its ranks have died, with the KV mirror and without, and what the mirror costs while nothing happens. Both in one
// run, taking turns, so that a busy machine is as busy for one as for the other. Usage: mirror_restore [MODEL_FOLDER] [ROUNDS]. A line a context
// length: milliseconds from the new membership to the next token; then the steady state.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/cpu/mirror_copier.hpp"
#include "gpu/models/gpt_oss.hpp"
#include "scheduler/placement.hpp"
#include "tests/bench/decode_block.hpp"
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

// Seconds that the copiers' threads of this process have run.
double copier_seconds() {
  double nanoseconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    double ran = 0;
    if (name == gpu::cpu::MirrorCopier::thread_name && std::ifstream(task.path() / "schedstat") >> ran) nanoseconds += ran;
  }
  return nanoseconds * 1e-9;
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
  std::unique_ptr<LocalEngine> engine(std::uint64_t mirror_bytes) {
    LocalEngine::Options options;
    options.grid = scheduler::default_grid(1);
    options.limits.context_tokens_max = model_->spec.context_tokens_max;
    options.kv_bytes = 256u << 20;
    options.mirror_bytes = mirror_bytes;
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
      const auto e = engine(mirror ? 256u << 20 : 0);
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

  // Short requests on two engines that stay, and a mirror that a few of them fill, so that its memory has been touched before, as in a server that
  // has run for a while. Processor time of the whole process: the copier's thread is in it.
  bool steady_state() {
    const std::unique_ptr<LocalEngine> engines[2] = {engine(0), engine(4u << 20)};
    if (!engines[0] || !engines[1]) return false;
    constexpr std::uint32_t prompt = 128, completion = 128;
    const int pairs = 20 * rounds_;
    std::vector<double> ratios, plain;
    double copying = 0, computing = 0;
    for (int pair = -8; pair < pairs; ++pair) {
      double seconds[2] = {};
      for (const bool mirror : {pair % 2 == 0, pair % 2 != 0}) {
        LocalEngine& e = *engines[mirror ? 1 : 0];
        Submitted asked = request(prompt, completion, model_->spec.vocabulary);
        asked.request = RequestId{static_cast<std::uint64_t>(pair + 9)};
        for (TokenId& token : asked.prompt) token = (token + 7 * static_cast<TokenId>(asked.request.value)) % model_->spec.vocabulary;
        const double began = processor_seconds(), copied_before = copier_seconds();
        const auto done = e.run({asked});
        seconds[mirror ? 1 : 0] = processor_seconds() - began;
        if (done[0].tokens.size() != completion) return std::printf("the run ended early: %s\n", done[0].error.message.c_str()), false;
        if (mirror && pair >= 0) copying += copier_seconds() - copied_before, computing += seconds[1];
      }
      if (pair < 0) continue;  // warm
      plain.push_back(seconds[0] / completion);
      ratios.push_back(seconds[1] / seconds[0]);
    }
    std::sort(ratios.begin(), ratios.end());
    const auto quartile = [&](std::size_t quarter) { return 100 * (ratios[ratios.size() * quarter / 4] - 1); };
    const gpu::MirrorCounts counts = engines[1]->mirror_counts(0);
    std::printf(
        "steady state, %u tokens of prompt and %u drawn: %.1f us of processor a drawn token without; median of %zu pairs %+.2f %%, "
        "quartiles %+.2f and %+.2f (%llu pages copied, %llu skipped); the copier's thread itself ran %.2f %% of the processor time\n",
        prompt, completion, 1e6 * median(plain), ratios.size(), quartile(2), quartile(1), quartile(3), static_cast<unsigned long long>(counts.copied),
        static_cast<unsigned long long>(counts.skipped), 100 * copying / computing);
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
