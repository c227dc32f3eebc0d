// The linear layers and norms of a decode step, alone and as a chain in a graph, over random weights of gpt-oss' shapes: bytes moved, GB/s and
// percent of the 4.64 TB/s that the device reads at most. Attention and sampling are left out (cuda_attention, cuda_sampler); the whole step is
// cuda_decode's.
//
//   cuda_stream_linear [--experts N] [--layers N] [--tokens N,N,...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/norm.hpp"
#include "gpu/cuda/stream_linear.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing::gpu::cuda;

constexpr double wall = 4.64e12;
constexpr std::uint32_t hidden = 2880, intermediate = 2880, qkv_rows = 5120, attended = 4096, vocabulary = 201088, k = 4, tokens_max = 256;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must(call, #call)

// Bytes that look random and expand to small weights: bf16 with exponents around 2^-6, mxfp4 with small scales.
__global__ void fill(std::uint32_t* words, std::size_t count, WeightFormat format) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x) {
    std::uint32_t h = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(i >> 32);
    h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12;
    if (format == WeightFormat::bf16) {
      words[i] = (h & 0x80FF80FFu) | 0x3C003C00u;
    } else {
      words[i] = i * 4 % 544 < 512 ? h : 0xFAFAFAFAu;
    }
  }
}
template <class T>
T* device(std::size_t size) {
  void* memory = nullptr;
  MUST(cudaMalloc(&memory, size * sizeof(T)));
  MUST(cudaMemset(memory, 0, size * sizeof(T)));
  return static_cast<T*>(memory);
}
PackedMatrix matrix(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t count) {
  PackedMatrix m{format, nullptr, out, in, count};
  auto* data = device<std::byte>(m.bytes());
  fill<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(data), m.bytes() / 4, format);
  MUST(cudaGetLastError());
  m.data = data;
  return m;
}

struct Layer {
  PackedMatrix qkv, out, router, gate_up, down;
};

struct Bench {
  std::vector<Layer> layers;
  PackedMatrix head;
  std::uint32_t experts = 32;
  float *residual, *outputs, *logits, *norm, *cosine;
  __nv_bfloat16 *normed, *queries, *attention, *inner;
  std::int32_t *rows, *positions, *table;
  std::byte* pages;
  Routing routing;
  cudaStream_t stream;

  void qkv(const Layer& l, std::uint32_t t) {
    StreamArgs<QkvEpilogue> a;
    a.weights = l.qkv, a.input = normed, a.input_stride = hidden, a.columns.count = t;
    a.epilogue = {nullptr, cosine, cosine, queries, {rows, positions, t}, {pages, 1 << 20, 0, table, 1, 16, 64}, 64, 8, 64};
    MUST(stream_linear(a, stream_shape(l.qkv, {t, t, 1}, 132), stream));
  }
  void out(const Layer& l, std::uint32_t t) {
    StreamArgs<ResidualEpilogue> a;
    a.weights = l.out, a.input = attention, a.input_stride = attended, a.columns.count = t;
    a.epilogue = {nullptr, residual, hidden};
    MUST(stream_linear(a, stream_shape(l.out, {t, t, 1}, 132), stream));
  }
  void route(const Layer& l, std::uint32_t t) {
    NormRouteArgs a;
    a.tokens = {rows, positions, t}, a.residual = residual, a.norm = norm, a.epsilon = 1e-5F, a.hidden = hidden, a.normed = normed, a.stride = hidden;
    a.weights = l.router, a.experts_per_token = k, a.routing = routing;
    MUST(norm_route(a, stream));
  }
  void gate_up(const Layer& l, std::uint32_t t) {
    StreamArgs<SwigluEpilogue> a;
    a.weights = l.gate_up, a.input = normed, a.input_stride = hidden, a.columns = {routing.pairs, routing.counts, 0, routing.capacity, k};
    a.epilogue = {nullptr, inner, intermediate, intermediate, 7.0F, 1.702F};
    a.weights_are_known = false;
    MUST(stream_linear(a, stream_shape(l.gate_up, work(t), 132), stream));
  }
  void down(const Layer& l, std::uint32_t t) {
    StreamArgs<PlainEpilogue> a;
    a.weights = l.down, a.input = inner, a.input_stride = intermediate, a.columns = {routing.pairs, routing.counts, 0, routing.capacity, 1};
    a.epilogue = {nullptr, outputs, hidden};
    MUST(stream_linear(a, stream_shape(l.down, work(t), 132), stream));
  }
  void combine(std::uint32_t t) {
    CombineNormArgs a;
    a.tokens = {rows, positions, t}, a.routing = routing, a.experts = experts, a.experts_per_token = k, a.outputs = outputs, a.norm = norm;
    a.epsilon = 1e-5F, a.hidden = hidden, a.residual = residual, a.normed = normed, a.stride = hidden;
    MUST(combine_norm(a, stream));
  }
  void logits_of(std::uint32_t t) {
    StreamArgs<PlainEpilogue> a;
    a.weights = head, a.input = normed, a.input_stride = hidden, a.columns.count = t, a.epilogue = {nullptr, logits, vocabulary};
    MUST(stream_linear(a, stream_shape(head, {t, t, 1}, 132), stream));
  }
  StreamWork work(std::uint32_t t) const { return {t, ceil_div(t * k, experts), std::min(experts, t * k)}; }

  double time(const std::function<void()>& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < 3; ++i) MUST(cudaGraphLaunch(exec, stream));
    constexpr int runs = 20;
    MUST(cudaEventRecord(begin, stream));
    for (int i = 0; i < runs; ++i) MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, begin, end));
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    return ms / runs * 1e-3;
  }
};

// Matrices, and buffers for steps of up to tokens_max tokens. start: residuals that a step begins with.
void prepare(Bench& b, std::uint32_t layer_count, const std::vector<float>& start) {
  MUST(cudaStreamCreate(&b.stream));
  for (std::uint32_t l = 0; l < layer_count; ++l)
    b.layers.push_back({matrix(WeightFormat::bf16, qkv_rows, hidden, 1), matrix(WeightFormat::bf16, hidden, attended, 1),
                        matrix(WeightFormat::bf16, b.experts, hidden, 1), matrix(WeightFormat::mxfp4, 2 * intermediate, hidden, b.experts),
                        matrix(WeightFormat::mxfp4, hidden, intermediate, b.experts)});
  b.head = matrix(WeightFormat::bf16, vocabulary, hidden, 1);
  b.residual = device<float>(tokens_max * hidden);
  MUST(cudaMemcpy(b.residual, start.data(), start.size() * 4, cudaMemcpyHostToDevice));
  b.outputs = device<float>(tokens_max * k * hidden);
  b.logits = device<float>(std::size_t{tokens_max} * vocabulary);
  b.norm = device<float>(hidden);
  const std::vector<float> ones(hidden, 1.0F);
  MUST(cudaMemcpy(b.norm, ones.data(), hidden * 4, cudaMemcpyHostToDevice));
  b.cosine = device<float>(tokens_max * 32);
  b.normed = device<__nv_bfloat16>(tokens_max * hidden);
  b.queries = device<__nv_bfloat16>(tokens_max * attended);
  b.attention = device<__nv_bfloat16>(tokens_max * attended);
  b.inner = device<__nv_bfloat16>(tokens_max * k * intermediate);
  b.rows = device<std::int32_t>(tokens_max);
  b.positions = device<std::int32_t>(tokens_max);
  b.table = device<std::int32_t>(tokens_max);
  b.pages = device<std::byte>(1 << 20);
  b.routing = {device<std::int32_t>(tokens_max * k), device<float>(tokens_max * k), device<std::uint32_t>(b.experts),
               device<std::int32_t>(b.experts * tokens_max), tokens_max};
}

// A routing of `t` random tokens, kept for the kernels that are timed alone.
void route_once(Bench& b, std::uint32_t t) {
  MUST(cudaMemset(b.routing.counts, 0, b.experts * 4));
  b.route(b.layers[0], t);
  MUST(cudaStreamSynchronize(b.stream));
}

double active_experts(const Bench& b) {
  std::vector<std::uint32_t> counts(b.experts);
  MUST(cudaMemcpy(counts.data(), b.routing.counts, b.experts * 4, cudaMemcpyDeviceToHost));
  return static_cast<double>(std::count_if(counts.begin(), counts.end(), [](std::uint32_t c) { return c != 0; }));
}

void measure(Bench& b, std::uint32_t t, const std::vector<float>& start) {
  const double n = static_cast<double>(b.layers.size());
  const auto restart = [&] { MUST(cudaMemcpy(b.residual, start.data(), start.size() * 4, cudaMemcpyHostToDevice)); };
  const auto report = [&](const char* name, double seconds, double bytes) {
    std::printf("%3u tokens  %-9s %8.2f us  %7.1f MB  %5.0f GB/s  %5.1f %%\n", t, name, seconds * 1e6, bytes * 1e-6, bytes / seconds * 1e-9,
                bytes / seconds / wall * 100);
    std::fflush(stdout);
  };
  const auto each = [&](const auto& one) {
    const auto all = [&] {
      for (const Layer& l : b.layers) one(l);
    };
    return b.time(all) / n;
  };
  restart();
  route_once(b, t);
  const double active = active_experts(b);
  const Layer& first = b.layers[0];
  const double expert = static_cast<double>(first.gate_up.matrix_bytes()), half = static_cast<double>(first.down.matrix_bytes());
  report("qkv", each([&](const Layer& l) { b.qkv(l, t); }), static_cast<double>(first.qkv.bytes()));
  report("out", each([&](const Layer& l) { b.out(l, t); }), static_cast<double>(first.out.bytes()));
  route_once(b, t);
  report("gate_up", each([&](const Layer& l) { b.gate_up(l, t); }), expert * active);
  report("down", each([&](const Layer& l) { b.down(l, t); }), half * active);
  report("route+combine", each([&](const Layer& l) { b.route(l, t), b.combine(t); }), static_cast<double>(first.router.bytes()));
  report("head", b.time([&] { b.logits_of(t); }), static_cast<double>(b.head.bytes()));
  restart();
  MUST(cudaMemset(b.routing.counts, 0, b.experts * 4));
  const double step = b.time([&] {
    for (const Layer& l : b.layers) b.qkv(l, t), b.out(l, t), b.route(l, t), b.gate_up(l, t), b.down(l, t), b.combine(t);
    b.logits_of(t);
  });
  report("chain", step,
         n * (static_cast<double>(first.qkv.bytes() + first.out.bytes()) + (expert + half) * active) + static_cast<double>(b.head.bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_stream_linear [--experts N] [--layers N] [--tokens N,N,…]\n"
                             "Linear layers and norms of a decode step. Needs a GPU."))
    return 0;
  Bench b;
  std::uint32_t layer_count = 24;
  std::vector<std::uint32_t> batches = {1, 8, 32, 128};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--experts") == 0) b.experts = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--layers") == 0) layer_count = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--tokens") == 0) {
      batches.clear();
      for (char* part = std::strtok(argv[i + 1], ","); part != nullptr; part = std::strtok(nullptr, ","))
        batches.push_back(static_cast<std::uint32_t>(std::atoi(part)));
    }
  }
  std::vector<float> start(tokens_max * hidden);
  std::mt19937 random(1);
  for (auto& v : start) v = static_cast<float>(random()) * 0x1p-32F - 0.5F;
  prepare(b, layer_count, start);
  for (const std::uint32_t t : batches) measure(b, t, start);
  MUST(cudaDeviceSynchronize());
  return 0;
}
