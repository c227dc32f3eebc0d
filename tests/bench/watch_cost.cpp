// What being watched costs a rank when nothing fails: the same decode steps with and without a heart, stamps, step times and a watcher, in turns
// within one run, so that the machine's moods hit both alike. Processor time of the whole process is compared, the watcher's and the heart's threads
// included. Usage: watch_cost [MODEL_FOLDER] [PAIRS] [STEPS_A_BLOCK]. Ends with 1 when the median pair costs more than 1 %.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "actors/rank_stamps.hpp"
#include "actors/rank_watch.hpp"
#include "gpu/models/gpt_oss.hpp"
#include "tests/bench/decode_block.hpp"
#include "tests/support/usage.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t batch = 8;
constexpr double cost_max = 0.01;

// All that a server adds to a rank's steps.
class Watched {
 public:
  explicit Watched(gpu::Executor& executor) : executor_(executor), heart_(stamps_) {
    gpu::Observer observer;
    observer.progress = [stamps = stamps_] { stamps->progress.fetch_add(1, std::memory_order_relaxed); };
    executor_.observe(std::move(observer));
    watcher_ = std::jthread([this](const std::stop_token& stop) {
      actors::RankWatch watch({});
      std::mutex mutex;
      std::condition_variable_any ended;
      std::unique_lock lock(mutex);
      while (!stop.stop_requested()) {
        verdicts_ += watch.look(std::chrono::steady_clock::now(), {{stamps_.get(), ::getpid()}}, 1).size();
        ended.wait_for(lock, stop, std::chrono::milliseconds(20), [] { return false; });
      }
    });
  }
  ~Watched() { executor_.observe({}); }

  void begin() {
    began_ = actors::monotonic_ns();
    stamps_->tokens.store(batch, std::memory_order_relaxed);
    stamps_->in_flight.fetch_add(1, std::memory_order_release);
  }
  void end() {
    stamps_->step_done(actors::monotonic_ns() - began_, batch);
    stamps_->in_flight.fetch_sub(1, std::memory_order_release);
  }
  std::size_t verdicts() const { return verdicts_; }
  const std::shared_ptr<actors::RankStamps>& stamps() const { return stamps_; }

 private:
  gpu::Executor& executor_;
  std::shared_ptr<actors::RankStamps> stamps_ = std::make_shared<actors::RankStamps>();
  actors::Heart heart_;
  std::atomic<std::size_t> verdicts_{0};
  std::uint64_t began_ = 0;
  std::jthread watcher_;
};

// Of one stamped call over one that does nothing.
double collective_seconds() {
  constexpr int calls = 2'000'000;
  const auto stamps = std::make_shared<actors::RankStamps>();
  const std::shared_ptr<gpu::Communicator> plain = gpu::solo_communicator(EpochId{1});
  actors::StampedCommunicator stamped(plain, stamps);
  const auto time = [](gpu::Communicator& communicator) {
    const double before = processor_seconds();
    for (int i = 0; i < calls; ++i)
      if (!communicator.barrier()) std::abort();
    return (processor_seconds() - before) / calls;
  };
  return std::max(0.0, time(stamped) - time(*plain));
}

int measure(const std::string& folder, std::uint32_t pairs, std::uint32_t steps) {
  auto model = gpu::load_gpt_oss(folder);
  if (!model) return std::printf("%s\n", model.error().message.c_str()), 1;
  EngineOptions options;
  options.rows_max = batch;
  options.context_tokens_max = block_prompt + steps + 1;
  auto engine = Engine::create(*model, options);
  if (!engine) return std::printf("%s\n", engine.error().message.c_str()), 1;
  std::vector<double> plain, watched, ratios;
  std::uint64_t epoch = 1;
  std::size_t verdicts = 0;
  for (std::uint32_t pair = 0; pair <= pairs; ++pair) {
    std::optional<double> without, with;
    const auto run_without = [&] {
      without = decode_block(
          **engine, ++epoch, batch, steps, [] {}, [] {});
    };
    const auto run_with = [&] {
      Watched watch((*engine)->executor(0));
      with = decode_block(
          **engine, ++epoch, batch, steps, [&] { watch.begin(); }, [&] { watch.end(); });
      verdicts += watch.verdicts();
    };
    // Who goes first alternates.
    if (pair % 2 == 0) run_without();
    run_with();
    if (pair % 2 == 1) run_without();
    if (!without || !with) return std::printf("a step failed\n"), 1;
    if (pair == 0) continue;  // warm
    plain.push_back(*without), watched.push_back(*with), ratios.push_back(*with / *without);
  }
  const std::size_t collectives = (*model)->spec.layers.size() * 2 + 1;
  const double stamps = collective_seconds() * static_cast<double>(collectives);
  const double ratio = median(ratios) + stamps / median(plain);
  std::printf("%u pairs of %u steps of %u rows: %.1f us a step without, %.1f us with; median of the pairs' ratios %.4f\n", pairs, steps, batch,
              median(plain) * 1e6, median(watched) * 1e6, median(ratios));
  std::printf("stamps of %zu collectives: %.3f us a step; all together %.4f (at most %.2f is allowed); %zu false verdicts\n", collectives,
              stamps * 1e6, ratio, 1.0 + cost_max, verdicts);
  return ratio <= 1.0 + cost_max && verdicts == 0 ? 0 : 1;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "watch_cost [MODEL_FOLDER [PAIRS [STEPS_A_BLOCK]]]\n"
                             "What being watched costs a rank; ends with 1 when it is more than 1 %."))
    return 0;
  const auto number = [&](int index, std::uint32_t otherwise) {
    return argc > index ? static_cast<std::uint32_t>(std::strtoul(argv[index], nullptr, 10)) : otherwise;
  };
  return althing::tests::measure(argc > 1 ? argv[1] : ALTHING_SOURCE_DIR "/examples/models/tiny", number(2, 20), number(3, 50));
}
