// What a step's draws cost: microseconds of one call in a captured graph, for rows of each kind and batches of each size, over logits as a model
// makes them. Greedy and plain rows read their logits once; the bytes a second are of that reading. Calls are timed by the dozen, so the logits of
// small batches come from the second-level cache, as they do right after the head has written them.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "gpu/cuda/sampler.hpp"
#include "tests/support/usage.hpp"

namespace althing::bench {
namespace {

using namespace gpu::cuda;

constexpr std::uint32_t vocabulary = 201'088;
constexpr std::uint32_t batch_max = 256;
constexpr int calls = 12;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

struct Kind {
  const char* name;
  float temperature;
  std::uint32_t top_k;
  float top_p;
  float min_p;
  std::uint32_t logprobs;
  bool with_filters;
};
constexpr Kind kinds[] = {
    {"greedy, alone", 0, 0, 1, 0, 0, false},
    {"plain, alone", 1, 0, 1, 0, 0, false},
    {"greedy", 0, 0, 1, 0, 0, true},
    {"plain", 1, 0, 1, 0, 0, true},
    {"top-k 50", 1, 50, 1, 0, 0, true},
    {"top-p 0.9", 1, 0, 0.9F, 0, 0, true},
    {"top-p 0.999", 1, 0, 0.999F, 0, 0, true},
    {"min-p 0.05", 1, 0, 1, 0.05F, 0, true},
    {"all three", 1, 50, 0.9F, 0.05F, 0, true},
    {"logprobs 5", 0, 0, 1, 0, 5, true},
};

double microseconds(const SamplerArgs& args, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) must(sample(args, stream));
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  float best = 1e30F;
  for (int repeat = 0; repeat < 10; ++repeat) {
    must(cudaEventRecord(begin, stream));
    must(cudaGraphLaunch(executable, stream));
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    best = ms < best ? ms : best;
  }
  must(cudaGraphExecDestroy(executable));
  must(cudaGraphDestroy(graph));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  return best * 1000.0 / calls;
}

template <class T>
T* device_array(std::size_t size) {
  T* memory = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&memory), size * sizeof(T)));
  must(cudaMemset(memory, 0, size * sizeof(T)));
  return memory;
}

// A wide bulk and a few likely tokens.
float* model_like_logits() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2.5F);
  std::vector<float> logits(std::size_t{batch_max} * vocabulary);
  for (float& l : logits) l = normal(random);
  for (std::uint32_t row = 0; row < batch_max; ++row)
    for (int i = 0; i < 30; ++i) logits[std::size_t{row} * vocabulary + random() % vocabulary] = 18.0F - 0.4F * static_cast<float>(i);
  auto* device = device_array<float>(logits.size());
  must(cudaMemcpy(device, logits.data(), logits.size() * sizeof(float), cudaMemcpyHostToDevice));
  return device;
}

int run() {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::fputs("cuda_sampler: no GPU that CUDA can use here; this benchmark needs one\n", stderr);
    return 5;  // as README.md lists exit codes
  }
  std::printf("%s, vocabulary %u, one call (with adjustments: no)\n%-14s %6s %10s %10s\n", properties.name, vocabulary, "rows", "batch", "us",
              "GB/s");
  SamplerArgs args;
  args.logits = model_like_logits();
  args.vocabulary = vocabulary;
  args.with_adjustments = false;
  args.scratch = device_array<std::byte>(sampler_scratch_bytes);
  args.drawn = device_array<DrawnRow>(batch_max);
  args.last_token = device_array<std::int32_t>(batch_max);
  args.chosen_logprobs = device_array<float>(batch_max);
  args.top_tokens = device_array<std::int32_t>(batch_max * logprobs_max);
  args.top_logprobs = device_array<float>(batch_max * logprobs_max);
  auto* rows = device_array<SamplerRow>(batch_max);
  args.rows = rows;
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream));
  for (const Kind& kind : kinds) {
    std::vector<SamplerRow> host(batch_max);
    for (std::uint32_t i = 0; i < batch_max; ++i) {
      host[i].row = static_cast<std::int32_t>(i), host[i].seed = i, host[i].position = 7 * i;
      host[i].temperature = kind.temperature, host[i].top_k = kind.top_k, host[i].top_p = kind.top_p, host[i].min_p = kind.min_p;
      host[i].logprobs = kind.logprobs;
    }
    must(cudaMemcpy(rows, host.data(), batch_max * sizeof(SamplerRow), cudaMemcpyHostToDevice));
    args.with_filters = kind.with_filters;
    for (const std::uint32_t batch : {1u, 8u, 32u, 64u, 256u}) {
      args.count = batch;
      const double us = microseconds(args, stream);
      std::printf("%-14s %6u %10.2f %10.0f\n", kind.name, batch, us, batch * 4.0 * vocabulary / us * 1e-3);
    }
  }
  return 0;
}

}  // namespace
}  // namespace althing::bench

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_sampler\n"
                             "What a step's draws cost. Needs a GPU."))
    return 0;
  return althing::bench::run();
}
