// How fast the prefill linear layers are on this GPU, in the shapes of gpt-oss: 8192 tokens (and shorter prompts), experts by MXFP4 with 4 pairs a
// token. Weights, inputs and outputs rotate through copies that together exceed the L2 cache, as layers do in a model. Values are random: power
// counts.
//
//   cuda_tile_linear [tokens …]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/tile_linear.hpp"

namespace {

using namespace althing::gpu::cuda;

constexpr double library_peak = 789e12;  // a bf16 product of 8192 cubed by the vendor's library, on an H200
constexpr std::uint32_t hidden = 2880, intermediate = 2880, query_heads = 64, kv_heads = 8, head_dim = 64, choices = 4, copies = 4;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must(call, #call)

// Words without a pattern: bf16 pairs of about 0.02, e2m1 codes with small exponents, or E4M3 codes without NaN.
__global__ void fill(std::uint32_t* words, std::size_t count, WeightFormat format) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x) {
    std::uint32_t h = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(i >> 32);
    h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12, h *= 0x297a2d39u, h ^= h >> 15;
    if (format == WeightFormat::bf16) words[i] = (h & 0x80FF80FFu) | 0x3C003C00u;
    if (format == WeightFormat::mxfp4) words[i] = i * 4 % 544 < 512 ? h : 0xFAFAFAFAu;
    if (format == WeightFormat::fp8) words[i] = i * 4 % 1056 < 1024 ? h & 0xB7B7B7B7u : 0x00007600u;
  }
}

template <class T>
class Array {
 public:
  explicit Array(std::size_t size) {
    MUST(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(size, 1) * sizeof(T)));
    MUST(cudaMemset(data_, 0, size * sizeof(T)));
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    MUST(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

struct Weights {
  PackedMatrix matrix;
  Array<std::byte> data;
  Weights(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t count)
      : matrix{format, nullptr, out, in, count}, data(matrix.bytes() * copies) {
    fill<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(data.get()), matrix.bytes() * copies / 4, format);
    MUST(cudaDeviceSynchronize());
  }
  PackedMatrix copy(std::uint32_t i) const {
    PackedMatrix m = matrix;
    m.data = data.get() + i % copies * m.bytes();
    return m;
  }
};

// `copies` matrices of (rows, stride), about 1 in size.
struct Inputs {
  std::uint64_t size;
  Array<std::uint32_t> data;
  Inputs(std::uint32_t rows, std::uint32_t stride) : size(std::uint64_t{rows} * stride), data(size * copies / 2) {
    fill<<<1024, 256>>>(data.get(), size * copies / 2, WeightFormat::bf16);
    MUST(cudaDeviceSynchronize());
  }
  __nv_bfloat16* copy(std::uint32_t i) const { return reinterpret_cast<__nv_bfloat16*>(data.get()) + i % copies * size; }
};

// Seconds of one launch: the median of several rounds.
double seconds(const std::function<cudaError_t(std::uint32_t)>& enqueue) {
  cudaEvent_t begin = nullptr, end = nullptr;
  MUST(cudaEventCreate(&begin));
  MUST(cudaEventCreate(&end));
  std::vector<double> times;
  constexpr std::uint32_t launches = 8;
  for (int round = 0; round < 9; ++round) {
    MUST(cudaEventRecord(begin, nullptr));
    for (std::uint32_t i = 0; i < launches; ++i) MUST(enqueue(i));
    MUST(cudaEventRecord(end, nullptr));
    MUST(cudaEventSynchronize(end));
    float milliseconds = 0;
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= 2) times.push_back(milliseconds * 1e-3 / launches);
  }
  MUST(cudaEventDestroy(begin));
  MUST(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const char* what, const PackedMatrix& m, std::uint32_t columns, double time) {
  const char* names[] = {"bf16", "fp8", "mxfp4"};
  const double rate = 2.0 * m.out * m.in * columns / time;
  std::printf("%-8s %-5s %3u x %u x %u, %6u columns %9.1f us %7.1f TFLOP/s %5.1f %% of the library's\n", what, names[static_cast<int>(m.format)],
              m.count, m.out, m.in, columns, time * 1e6, rate * 1e-12, 100 * rate / library_peak);
  std::fflush(stdout);
}

void attention(WeightFormat format, std::uint32_t tokens) {
  constexpr std::uint32_t heads = query_heads + 2 * kv_heads, page_tokens = 16;
  const Weights qkv(format, heads * head_dim, hidden, 1), out(format, hidden, query_heads * head_dim, 1);
  const Inputs normed(tokens, hidden), attended(tokens, query_heads * head_dim);
  std::vector<std::int32_t> positions(tokens), table(ceil_div(tokens, page_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const Array<std::int32_t> rows(tokens), device_positions(positions), device_table(table);
  const Array<float> bias(heads * head_dim), angles(std::size_t{tokens} * head_dim / 2), residual(std::size_t{tokens} * hidden);
  const std::uint64_t page_bytes = 2ull * 2 * kv_heads * page_tokens * head_dim;
  const Array<std::byte> pages(page_bytes * table.size());
  QkvEpilogue epilogue;
  epilogue.bias = bias.get(), epilogue.cosine = epilogue.sine = angles.get(), epilogue.queries = attended.copy(0);
  epilogue.tokens = {rows.get(), device_positions.get(), tokens};
  epilogue.kv = {pages.get(), page_bytes, 0, device_table.get(), static_cast<std::uint32_t>(table.size()), page_tokens, head_dim};
  epilogue.query_heads = query_heads, epilogue.kv_heads = kv_heads, epilogue.head_dim = head_dim;
  Columns columns;
  columns.count = tokens;
  report("qkv", qkv.matrix, tokens, seconds([&](std::uint32_t i) {
           return tile_linear(TileLinearArgs<QkvEpilogue>{qkv.copy(i), normed.copy(i), hidden, columns, epilogue}, nullptr);
         }));
  report("out", out.matrix, tokens, seconds([&](std::uint32_t i) {
           const ResidualEpilogue added{bias.get(), residual.get(), hidden};
           return tile_linear(TileLinearArgs<ResidualEpilogue>{out.copy(i), attended.copy(i), query_heads * head_dim, columns, added}, nullptr);
         }));
}

void experts(WeightFormat format, std::uint32_t count, std::uint32_t tokens) {
  const Weights gate_up(format, 2 * intermediate, hidden, count), down(format, hidden, intermediate, count);
  const Inputs normed(tokens, hidden), inner(tokens * choices, intermediate);
  // Each token chooses different experts, all alike often.
  std::vector<std::uint32_t> counts(count);
  std::vector<std::int32_t> lists(std::size_t{count} * tokens, -1);
  std::mt19937 random(2);
  std::vector<std::uint32_t> chosen(count);
  std::iota(chosen.begin(), chosen.end(), 0);
  for (std::uint32_t t = 0; t < tokens; ++t)
    for (std::uint32_t c = 0; c < choices; ++c) {
      std::swap(chosen[c], chosen[c + random() % (count - c)]);
      lists[std::size_t{chosen[c]} * tokens + counts[chosen[c]]++] = static_cast<std::int32_t>(t * choices + c);
    }
  const Array<std::uint32_t> device_counts(counts);
  const Array<std::int32_t> device_lists(lists);
  const Array<float> bias(std::size_t{count} * 2 * intermediate), outputs(std::size_t{tokens} * choices * hidden);
  const Array<__nv_bfloat16> activations(std::size_t{tokens} * choices * intermediate);
  Columns columns{device_lists.get(), device_counts.get(), 0, tokens, choices};
  report("gate_up", gate_up.matrix, tokens * choices, seconds([&](std::uint32_t i) {
           const SwigluEpilogue epilogue{bias.get(), activations.get(), intermediate, intermediate, 7.0F, 1.702F};
           return tile_linear(TileLinearArgs<SwigluEpilogue>{gate_up.copy(i), normed.copy(i), hidden, columns, epilogue}, nullptr);
         }));
  columns.divisor = 1;
  report("down", down.matrix, tokens * choices, seconds([&](std::uint32_t i) {
           const PlainEpilogue epilogue{bias.get(), outputs.get(), hidden};
           return tile_linear(TileLinearArgs<PlainEpilogue>{down.copy(i), inner.copy(i), intermediate, columns, epilogue}, nullptr);
         }));
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 0;
  }
  cudaDeviceProp properties{};
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d processors\n", properties.name, properties.multiProcessorCount);
  std::vector<std::uint32_t> tokens = {8192, 2048, 512};
  if (argc > 1) tokens.clear();
  for (int i = 1; i < argc; ++i) tokens.push_back(static_cast<std::uint32_t>(std::atoi(argv[i])));
  for (const std::uint32_t t : tokens) {
    attention(WeightFormat::bf16, t);
    attention(WeightFormat::fp8, t);
    experts(WeightFormat::mxfp4, 32, t);
    experts(WeightFormat::mxfp4, 128, t);
    if (t == tokens.front()) experts(WeightFormat::bf16, 32, t);
  }
  return 0;
}
