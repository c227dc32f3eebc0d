// Whole steps of a dummy model of the exact published shapes through the executor, as a server runs them: two steps in flight, tokens taken from the
// draws on the device. Decode at a context, by batch; prefill of one prompt. One line a figure; the floor is the bytes that must be read (with the
// experts that really were chosen) at 4.64 TB/s, or the operations of a prompt at 790 TFLOP/s.
//
//   cuda_decode [--json] [--fp8] [--whole-steps] [--uncounted] [--unscreened] [--model 20b|120b] [--context N] [--batches 1,8,32,128] [--steps N]
//   [--prefill N]
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "gpu/comm/solo_communicator.hpp"
#include "gpu/cuda/device_info.hpp"
#include "gpu/executor.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "scheduler/placement.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using Clock = std::chrono::steady_clock;

constexpr double wall = 4.64e12, tensor_rate = 790e12;

struct Settings {
  bool json = false;
  bool fp8 = false;
  bool whole_steps = false;
  bool screen = true;
  bool counts = true;
  std::string model = "20b";
  std::uint32_t context = 1024;
  std::vector<std::uint32_t> batches = {1, 8, 32, 128};
  std::uint32_t steps = 200;
  std::uint32_t prefill = 8192;
};

template <class T>
T must(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), model_(must(gpu::dummy_model(settings.model))) {
    const gpu::DecoderSpec& spec = model_->spec;
    const auto placements = must(scheduler::place(1, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary}));
    std::uint32_t rows = 1;
    for (const std::uint32_t batch : settings.batches) rows = std::max(rows, batch);
    gpu::ExecutorConfig config;
    config.device = gpu::Device::cuda;
    config.placement = placements[0];
    config.whole_steps = settings.whole_steps;
    config.count_steps = settings.counts;
    config.screen_head = settings.screen;
    config.dense = settings.fp8 ? gpu::DenseFormat::fp8 : gpu::DenseFormat::bf16;
    config.limits.rows_max = rows;
    config.limits.step_tokens_max = std::max(8192u, settings.prefill);
    config.limits.context_tokens_max = std::max(settings.context + 3 * settings.steps, settings.prefill) + 256;
    const std::uint64_t kv = std::uint64_t{24} << 30;
    config.kv = must(gpu::kv_layout(spec, placements, gpu::kv_format(config.device), kv, config.limits.context_tokens_max));
    const auto begin = Clock::now();
    executor_ = must(gpu::Executor::create(model_, config));
    kv_layout_ = config.kv;
    std::fprintf(stderr, "ready after %.2f s, weights %.2f GB\n", seconds_since(begin), static_cast<double>(executor_->memory().weight_bytes) * 1e-9);
    communicator_ = gpu::solo_communicator(EpochId{1});
  }

  void prefill() {
    // The first run loads kernels, and a GPU that was idle takes a second or two of work to come up to its clocks.
    double best = 1e9;
    const auto warm = Clock::now();
    for (int i = 0; i < 3 || seconds_since(warm) < 2.5; ++i) {
      StepPlan plan = next(true);
      admit(plan, 0, settings_.prefill + 8);
      plan.work.push_back({RowIndex{0}, 0, settings_.prefill, random_tokens(settings_.prefill), true});
      const auto begin = Clock::now();
      run(plan);
      best = std::min(best, seconds_since(begin));
    }
    const auto& s = model_->spec;
    const double t = settings_.prefill, layers = static_cast<double>(s.layers.size());
    const double heads = s.query_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    const double linear = 2.0 * s.hidden * (heads * 2 + kv * 2 + s.experts) + 2.0 * 4 * 3.0 * s.hidden * s.intermediate;
    double pairs = 0;
    for (const auto& layer : s.layers) pairs += layer.attention.window == 0 ? t * t / 2 : t * std::min<double>(t, layer.attention.window);
    const double operations = t * linear * layers + 4.0 * heads * pairs;
    report("prefill_" + settings_.model + "_" + std::to_string(settings_.prefill / 1024) + "k", t / best, "tok/s",
           operations / tensor_rate / best * 100);
  }

  void decode(std::uint32_t batch) {
    StepPlan plan = next(true);
    for (std::uint32_t row = 0; row < batch; ++row) admit(plan, row, settings_.context + 3 * settings_.steps + 64);
    // Prompts a few rows at a time, as many as a step takes.
    std::vector<std::uint32_t> position(batch, settings_.context);
    const std::uint32_t together = std::max(1u, 8192u / settings_.context);
    for (std::uint32_t row = 0; row < batch; row += together) {
      if (row != 0) plan = next(false);
      for (std::uint32_t r = row; r < std::min(batch, row + together); ++r)
        plan.work.push_back({RowIndex{r}, 0, settings_.context, random_tokens(settings_.context), true});
      run(plan);
    }
    const auto step = [&] {
      StepPlan decode = next(false);
      for (std::uint32_t row = 0; row < batch; ++row) decode.work.push_back({RowIndex{row}, position[row]++, 1, {}, true});
      submit(decode);
    };
    for (int i = 0; i < 8; ++i) step();
    drain();
    const double experts = distinct_experts(step);
    const auto begin = Clock::now();
    for (std::uint32_t i = 0; i < settings_.steps; ++i) step();
    drain();
    const double seconds = seconds_since(begin) / settings_.steps;
    // The same with the device never waiting for the host: what is left of the difference is the host's.
    in_flight_max_ = 4;
    const auto again = Clock::now();
    for (std::uint32_t i = 0; i < settings_.steps; ++i) step();
    drain();
    const double exposed = seconds - seconds_since(again) / settings_.steps;
    in_flight_max_ = 2;
    const std::uint32_t middle = settings_.context + settings_.steps / 2;
    const double bytes = step_bytes(batch, experts, middle);
    const std::string name = settings_.model + "_b" + std::to_string(batch);
    std::fprintf(stderr, "%s: %.1f distinct experts a layer, %.2f GB a step, floor %.3f ms, %.3f ms a step, %.0f tok/s\n", name.c_str(), experts,
                 bytes * 1e-9, bytes / wall * 1e3, seconds * 1e3, batch / seconds);
    if (batch == 1) {
      report("host_exposed_us_" + name, exposed * 1e6, "us", 0);
      report("decode_" + name + (settings_.fp8 ? "_fp8" : "_exact"), 1 / seconds, "tok/s", bytes / wall / seconds * 100);
    } else {
      report("step_" + name + (settings_.fp8 ? "_fp8" : ""), seconds * 1e3, "ms", bytes / wall / seconds * 100);
    }
  }

 private:
  static double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  StepPlan next(bool snapshot) {
    StepPlan plan;
    plan.epoch = EpochId{1};
    plan.snapshot = snapshot;
    plan.base = StepId{step_};
    plan.step = StepId{++step_};
    if (snapshot) next_page_ = 0;
    return plan;
  }
  void admit(StepPlan& plan, std::uint32_t row, std::uint32_t tokens) {
    SamplingParameters greedy;
    plan.set.push_back({RowIndex{row}, RequestId{row + 1}, greedy});
    for (std::uint32_t g = 0; g < kv_layout_.groups.size(); ++g) {
      PageGrant grant{RowIndex{row}, g, 0, {}};
      for (std::uint32_t i = 0; i < tokens; i += kv_layout_.groups[g].tokens_per_page) grant.pages.push_back(PageId{next_page_++});
      plan.pages.push_back(std::move(grant));
    }
    if (next_page_ > kv_layout_.page_count) {
      std::fprintf(stderr, "too few pages: %u of %u\n", next_page_, kv_layout_.page_count);
      std::exit(1);
    }
  }
  std::vector<TokenId> random_tokens(std::uint32_t count) {
    std::vector<TokenId> tokens(count);
    for (auto& token : tokens) token = static_cast<TokenId>(random_() % 200000);
    return tokens;
  }
  void submit(const StepPlan& plan) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return in_flight_ < in_flight_max_; });
      ++in_flight_;
    }
    executor_->submit(plan, communicator_, [this](Result<StepResult> result) {
      if (!result) {
        std::fprintf(stderr, "%s\n", result.error().message.c_str());
        std::exit(1);
      }
      const std::lock_guard lock(mutex_);
      for (const DrawnToken& drawn : result->drawn) nonfinite_ += drawn.nonfinite;
      --in_flight_;
      changed_.notify_all();
    });
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ == 0; });
    if (nonfinite_ != 0) {
      std::fprintf(stderr, "%u draws from logits that are not finite\n", nonfinite_);
      std::exit(1);
    }
  }
  void run(const StepPlan& plan) {
    submit(plan);
    drain();
  }
  template <class Step>
  double distinct_experts(const Step& step) {
    const auto before = executor_->expert_counts();
    step();
    drain();
    const auto after = executor_->expert_counts();
    double used = 0;
    for (std::size_t i = 0; i < after.tokens.size(); ++i) used += after.tokens[i] != before.tokens[i];
    return used / after.layers;
  }
  double step_bytes(double batch, double experts, double context) const {
    const auto& s = model_->spec;
    const double dense = settings_.fp8 ? 1.0 : 2.0;  // bytes of a weight of attention or head
    const double attention = dense * s.hidden * s.head_dim * (2.0 * s.query_heads + 2.0 * s.kv_heads) + 2.0 * s.hidden * s.experts;
    const double expert = 3.0 * s.hidden * s.intermediate * 17 / 32;
    double kv = 0;
    for (const auto& layer : s.layers)
      kv += batch * s.kv_heads * s.head_dim * 4.0 * (layer.attention.window == 0 ? context : std::min<double>(context, layer.attention.window));
    return static_cast<double>(s.layers.size()) * (attention + experts * expert) + kv + dense * s.hidden * s.vocabulary;
  }
  void report(const std::string& figure, double value, const char* unit, double percent) const {
    const auto devices = gpu::cuda_devices().devices;
    if (settings_.json) {
      std::printf("{\"figure\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"percent_of_floor\": %.1f, \"hardware\": \"%s\"}\n", figure.c_str(),
                  value, unit, percent, devices.empty() ? "?" : devices[0].name.c_str());
    } else {
      std::printf("%-28s %10.4g %-6s %5.1f %% of the floor\n", figure.c_str(), value, unit, percent);
    }
    std::fflush(stdout);
  }

  Settings settings_;
  std::shared_ptr<const gpu::Model> model_;
  KvLayout kv_layout_;
  std::unique_ptr<gpu::Executor> executor_;
  std::shared_ptr<gpu::Communicator> communicator_;
  std::mt19937 random_{7};
  std::uint64_t step_ = 0;
  std::uint32_t next_page_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t in_flight_ = 0, in_flight_max_ = 2, nonfinite_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_decode [--json] [--fp8] [--whole-steps] [--uncounted] [--unscreened] [--model 20b|120b] [--context N] [--batches "
                             "1,8,32,128] [--steps N]\n"
                             "[--prefill N]\n"
                             "Whole steps of a dummy model. Needs a GPU."))
    return 0;
  Settings s;
  const auto number = [](const char* text) { return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)); };
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json" || flag == "--fp8") {
      (flag == "--json" ? s.json : s.fp8) = true;
      continue;
    }
    if (flag == "--uncounted") {
      s.counts = false;
      continue;
    }
    if (flag == "--unscreened") {
      s.screen = false;
      continue;
    }
    if (flag == "--whole-steps") {
      s.whole_steps = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", argv[i]);
      return 2;
    }
    const char* value = argv[++i];
    if (flag == "--model") s.model = value;
    if (flag == "--context") s.context = number(value);
    if (flag == "--steps") s.steps = number(value);
    if (flag == "--prefill") s.prefill = number(value);
    if (flag == "--batches") {
      s.batches.clear();
      for (const char* at = value; *at != '\0'; at += std::strspn(at, ",")) {
        s.batches.push_back(number(at));
        at += std::strcspn(at, ",");
      }
    }
  }
  Bench bench(s);
  if (s.prefill != 0) bench.prefill();
  for (const std::uint32_t batch : s.batches) bench.decode(batch);
  return 0;
}
