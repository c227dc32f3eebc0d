// Where the time of a decode step of one token goes, phase by phase, in the kernel that runs a whole step; and whether that kernel's logits are those
// of the step as a row of kernels, bit for bit. Random weights of the published shapes.
//
//   decode_phases [--model 20b|120b] [--fp8] [--context N] [--steps N] [--check N]
//
// Times are each block's own clock, averaged over blocks, layers and steps: "work" from the phase's begin to its end in the block, "wait" until the
// block went on. Bytes are all weights of the phase; the wall is 4.64 TB/s. --check N: that many random tokens from position 0, N positions twice.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu/cuda/decoder.hpp"
#include "gpu/cuda/device_info.hpp"
#include "gpu/cuda/weight_loader.hpp"
#include "gpu/executor.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "gpu/ops/lower.hpp"
#include "scheduler/placement.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using namespace althing::gpu::cuda;

constexpr double wall = 4.64e12;

template <class T>
T must(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}
void must(cudaError_t error) { must(check(error, "CUDA")); }

// One row, a page table that never changes, and one step after the other.
class Runner {
 public:
  Runner(const gpu::DecoderSpec& spec, const DeviceModel& model, std::uint32_t context, std::uint32_t processors, bool whole) : model_(model) {
    const auto placements = must(scheduler::place(1, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary}));
    kv_ = must(gpu::kv_layout(spec, placements, gpu::kv_format(gpu::Device::cuda), std::uint64_t{6} << 30, context));
    decoder_ = must(Decoder::create(model, kv_, {64, 1, context, processors, whole}));
    shape_ = {1, 1, 0, 1, false, false};
    must(cudaMallocHost(reinterpret_cast<void**>(&block_), step_offsets(shape_).updates + kv_.page_count * sizeof(TableUpdate)));
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    std::uint32_t page = 0;
    pages_.resize(kv_.groups.size());
    for (std::size_t g = 0; g < kv_.groups.size(); ++g)
      for (std::uint32_t i = 0; i * kv_.groups[g].tokens_per_page < context; ++i) pages_[g].push_back(page++);
    if (page > kv_.page_count) std::exit((std::fprintf(stderr, "too few pages\n"), 1));
  }

  void step(std::int32_t token, std::uint32_t position) {
    shape_.far = decoder_->far(position);
    const StepOffsets o = step_offsets(shape_);
    const auto put = [&](std::size_t at, auto value) { std::memcpy(block_ + at, &value, sizeof value); };
    put(o.rows, std::int32_t{0});
    put(o.positions, static_cast<std::int32_t>(position));
    put(o.ids, token);
    put(o.decodes, std::int32_t{0});
    put(o.sampled, std::int32_t{0});
    SamplerRow draw;
    draw.row = 0;
    draw.position = position + 1;
    put(o.samplers, draw);
    std::uint32_t updates = 0;
    for (std::size_t g = 0; g < kv_.groups.size(); ++g) {
      const std::uint32_t size = kv_.groups[g].tokens_per_page;
      put(o.slots + g * sizeof(std::int32_t), static_cast<std::int32_t>(pages_[g][position / size] * size + position % size));
      if (started_) continue;
      for (std::uint32_t i = 0; i < pages_[g].size(); ++i)
        put(o.updates + updates++ * sizeof(TableUpdate),
            TableUpdate{decoder_->table_entry(static_cast<std::uint32_t>(g), 0, i), static_cast<std::int32_t>(pages_[g][i])});
    }
    put(o.update_count, updates);
    started_ = true;
    must(cudaMemcpyAsync(decoder_->block(0), block_, o.updates + updates * sizeof(TableUpdate), cudaMemcpyHostToDevice, stream_));
    must(decoder_->enqueue(shape_, 0, stream_));
    must(cudaStreamSynchronize(stream_));
    must(decoder_->status());
  }
  std::vector<float> logits() const {
    std::vector<float> values(model_.vocabulary);
    must(cudaMemcpy(values.data(), decoder_->logits(), values.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return values;
  }
  cudaStream_t stream() const { return stream_; }
  WholeStep* whole() const { return decoder_->whole_step(); }

 private:
  const DeviceModel& model_;
  KvLayout kv_;
  std::unique_ptr<Decoder> decoder_;
  StepShape shape_;
  std::byte* block_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<std::vector<std::uint32_t>> pages_;
  bool started_ = false;
};

struct Settings {
  std::string model = "20b";
  bool fp8 = false;
  std::uint32_t context = 1024, steps = 100, check = 0;
  std::uint32_t prefetch = 128u << 10;
};

int compare(Runner& one, Runner& other, std::uint32_t count) {
  std::mt19937 random(3);
  std::uint32_t different = 0;
  for (std::uint32_t position = 0; position < count; ++position) {
    const auto token = static_cast<std::int32_t>(random() % 200000);
    one.step(token, position);
    other.step(token, position);
    const auto a = one.logits(), b = other.logits();
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
    std::size_t unequal = 0;
    float largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) ++unequal, largest = std::max(largest, std::abs(a[i] - b[i]));
    if (++different <= 5) std::printf("position %u: %zu of %zu logits differ, by %g at most\n", position, unequal, a.size(), largest);
  }
  std::printf("%u steps, %u with logits that differ\n%d passed, %d failed, 0 skipped\n", count, different, different == 0 ? 1 : 0,
              different == 0 ? 0 : 1);
  return different == 0 ? 0 : 1;
}

void phases(const DeviceModel& m, Runner& runner, std::uint32_t processors, const Settings& settings) {
  const std::size_t layers = m.layers.size();
  DeviceBuffer<unsigned long long> stamps = must(allocate_device<unsigned long long>(processors * layers * decode_stamps, "stamps"));
  float alone = 0;
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  for (std::uint32_t i = 0; i < settings.steps; ++i) {
    must(cudaEventRecord(begin, runner.stream()));
    runner.step(static_cast<std::int32_t>(i * 7919 % 200000), settings.context);
    must(cudaEventRecord(end, runner.stream()));
    must(cudaEventSynchronize(end));
    must(cudaEventElapsedTime(&alone, begin, end));
    times.push_back(alone);
  }
  std::sort(times.begin(), times.end());
  std::printf("a step %.1f us\n", times[times.size() / 2] * 1e3);
  runner.whole()->stamp_to(stamps.get());
  int kilohertz = 0;
  must(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0));
  std::vector<unsigned long long> host(stamps.size());
  double sum[decode_stamps] = {}, largest[decode_stamps] = {};
  std::mt19937 random(5);
  for (std::uint32_t i = 0; i < settings.steps + 10; ++i) {
    runner.step(static_cast<std::int32_t>(random() % 200000), settings.context);
    if (i < 10) continue;
    must(cudaMemcpy(host.data(), stamps.get(), stamps.bytes(), cudaMemcpyDeviceToHost));
    for (std::size_t l = 0; l + 1 < layers; ++l)
      for (std::uint32_t p = 0; p < decode_stamps; ++p) {
        double most = 0;
        for (std::uint32_t b = 0; b < processors; ++b) {
          const unsigned long long* at = host.data() + (b * layers + l) * decode_stamps;
          const auto after = p + 1 < decode_stamps ? at[p + 1] : at[decode_stamps];
          const double microseconds = static_cast<double>(after - at[p]) * 1e3 / kilohertz;
          sum[p] += microseconds / processors;
          most = std::max(most, microseconds);
        }
        largest[p] += most;
      }
  }
  const char* names[decode_stamps] = {"qkv: work",      "attention: work",   "attention: wait, load",   "out: work",  "out: wait, norm",
                                      "router: choice", "gate and up: work", "gate and up: wait, load", "down: work", "down: wait, norm"};
  const double k = m.experts_per_token;
  const double bytes[decode_stamps] = {static_cast<double>(m.layers[0].qkv.bytes()),
                                       0,
                                       0,
                                       static_cast<double>(m.layers[0].out.bytes()),
                                       0,
                                       0,
                                       k * static_cast<double>(m.layers[0].gate_up.matrix_bytes()),
                                       0,
                                       k * static_cast<double>(m.layers[0].down.matrix_bytes()),
                                       0};
  const double count = static_cast<double>(settings.steps) * static_cast<double>(layers - 1);
  double total = 0, all = 0;
  for (std::uint32_t p = 0; p < decode_stamps; ++p) {
    const double mean = sum[p] / count;
    total += mean, all += bytes[p];
    std::printf("%-26s %7.2f us (longest block %7.2f)  %6.1f MB  %5.1f %% of the wall\n", names[p], mean, largest[p] / count, bytes[p] * 1e-6,
                bytes[p] / wall / mean * 1e8);
  }
  std::printf("%-26s %7.2f us  %6.1f MB  %5.1f %% of the wall (clock %.0f MHz as the driver names it)\n", "a layer", total, all * 1e-6,
              all / wall / total * 1e8, kilohertz * 1e-3);
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "decode_phases [--model 20b|120b] [--fp8] [--context N] [--steps N] [--prefetch N] [--check N]\n"
                             "Where the time of a decode step goes, phase by phase. Needs a GPU."))
    return 0;
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--fp8") {
      s.fp8 = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--model") s.model = value;
    if (flag == "--context") s.context = static_cast<std::uint32_t>(std::atoi(value));
    if (flag == "--steps") s.steps = static_cast<std::uint32_t>(std::atoi(value));
    if (flag == "--prefetch") s.prefetch = static_cast<std::uint32_t>(std::atoi(value));
    if (flag == "--check") s.check = static_cast<std::uint32_t>(std::atoi(value));
  }
  int processors = 0;
  must(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  const auto blocks = static_cast<std::uint32_t>(processors);
  const auto model = must(gpu::dummy_model(s.model));
  const auto placements = must(scheduler::place(1, {model->spec.query_heads, model->spec.kv_heads, model->spec.experts, model->spec.vocabulary}));
  const auto program = must(gpu::lower(model->spec, placements[0]));
  LoadOptions options;
  options.dense = s.fp8 ? WeightFormat::fp8 : WeightFormat::bf16;
  options.dummy_seed = model->dummy_seed;
  options.screen_head = false;  // the two ways are compared by all logits
  const LoadedModel loaded = must(load_weights(program, options));
  const std::uint32_t context = std::max({s.context + 1, s.check, 2u});
  Runner whole(model->spec, loaded.model, context, blocks, true);
  if (whole.whole() == nullptr) std::exit((std::fprintf(stderr, "the kernel does not take this model\n"), 1));
  whole.whole()->prefetch(s.prefetch);
  int failed = 0;
  if (s.check != 0) {
    Runner kernels(model->spec, loaded.model, context, blocks, false);
    failed = compare(whole, kernels, s.check);
  }
  if (s.steps != 0) phases(loaded.model, whole, blocks, s);
  return failed;
}
