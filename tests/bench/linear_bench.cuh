// What benchmarks of linear layers share: the layers of gpt-oss with random weights (power counts) and the time of a launch in a graph. Weights and
// inputs rotate through copies that together exceed the L2 cache, as layers do in a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/packed_matrix.hpp"
#include "tests/bench/graph_time.cuh"

namespace althing::bench {

using namespace gpu::cuda;

inline constexpr std::uint32_t hidden = 2880, intermediate = 2880, query_heads = 64, kv_heads = 8, head_dim = 64, choices = 4, copies = 4;

// Of one launch, among enough of them.
inline double seconds(const std::function<cudaError_t(std::uint32_t, cudaStream_t)>& enqueue) { return graph_seconds(16, enqueue); }

// Words without a pattern: bf16 pairs of about 0.02, e2m1 codes with small exponents, or E4M3 codes without NaN.
static __global__ void fill(std::uint32_t* words, std::size_t count, WeightFormat format) {
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

struct BenchWeights {
  PackedMatrix matrix;
  Array<std::byte> data;
  BenchWeights(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t count)
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

// Q k v and the output of attention, for `tokens` tokens of one row.
struct AttentionLayer {
  static constexpr std::uint32_t heads = query_heads + 2 * kv_heads, page_tokens = 16;
  static constexpr std::uint64_t page_bytes = 2ull * 2 * kv_heads * page_tokens * head_dim;

  BenchWeights qkv, out;
  Inputs normed, attended;
  Array<std::int32_t> rows, positions, table;
  Array<float> bias, angles, residual;
  Array<std::byte> pages;
  Columns columns;
  QkvEpilogue qkv_epilogue;
  ResidualEpilogue out_epilogue;

  AttentionLayer(WeightFormat format, std::uint32_t tokens)
      : qkv(format, heads * head_dim, hidden, 1),
        out(format, hidden, query_heads * head_dim, 1),
        normed(tokens, hidden),
        attended(tokens, query_heads * head_dim),
        rows(tokens),
        positions(counting(tokens)),
        table(shuffled(ceil_div(tokens, page_tokens))),
        bias(heads * head_dim),
        angles(std::size_t{tokens} * head_dim / 2),
        residual(std::size_t{tokens} * hidden),
        pages(page_bytes * ceil_div(tokens, page_tokens)) {
    columns.count = tokens;
    qkv_epilogue.bias = bias.get(), qkv_epilogue.cosine = qkv_epilogue.sine = angles.get(), qkv_epilogue.queries = attended.copy(0);
    qkv_epilogue.tokens = {rows.get(), positions.get(), tokens};
    qkv_epilogue.kv = {pages.get(), page_bytes, 0, table.get(), ceil_div(tokens, page_tokens), page_tokens, head_dim};
    qkv_epilogue.query_heads = query_heads, qkv_epilogue.kv_heads = kv_heads, qkv_epilogue.head_dim = head_dim;
    out_epilogue = {bias.get(), residual.get(), hidden};
  }

 private:
  static std::vector<std::int32_t> counting(std::uint32_t count) {
    std::vector<std::int32_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    return values;
  }
  static std::vector<std::int32_t> shuffled(std::uint32_t count) {
    auto values = counting(count);
    std::shuffle(values.begin(), values.end(), std::mt19937(1));
    return values;
  }
};

// Which pairs each expert has: every token chooses different experts, all alike often.
struct RandomRouting {
  std::vector<std::uint32_t> counts;
  std::vector<std::int32_t> lists;  // (experts, tokens)

  RandomRouting(std::uint32_t experts, std::uint32_t tokens) : counts(experts), lists(std::size_t{experts} * tokens, -1) {
    std::mt19937 random(2);
    std::vector<std::uint32_t> chosen(experts);
    std::iota(chosen.begin(), chosen.end(), 0);
    for (std::uint32_t t = 0; t < tokens; ++t)
      for (std::uint32_t c = 0; c < choices; ++c) {
        std::swap(chosen[c], chosen[c + random() % (experts - c)]);
        lists[std::size_t{chosen[c]} * tokens + counts[chosen[c]]++] = static_cast<std::int32_t>(t * choices + c);
      }
  }
  std::uint32_t active() const {
    return static_cast<std::uint32_t>(counts.size()) - static_cast<std::uint32_t>(std::count(counts.begin(), counts.end(), 0u));
  }
};

struct ExpertLayer {
  std::uint32_t tokens;
  BenchWeights gate_up, down;
  Inputs normed, inner;
  RandomRouting routing;
  Array<std::uint32_t> counts;
  Array<std::int32_t> lists;
  Array<float> bias, outputs;
  Array<__nv_bfloat16> activations;
  SwigluEpilogue gate_up_epilogue;
  PlainEpilogue down_epilogue;

  ExpertLayer(WeightFormat format, std::uint32_t experts, std::uint32_t of_tokens)
      : tokens(of_tokens),
        gate_up(format, 2 * intermediate, hidden, experts),
        down(format, hidden, intermediate, experts),
        normed(tokens, hidden),
        inner(tokens * choices, intermediate),
        routing(experts, tokens),
        counts(routing.counts),
        lists(routing.lists),
        bias(std::size_t{experts} * 2 * intermediate),
        outputs(std::size_t{tokens} * choices * hidden),
        activations(std::size_t{tokens} * choices * intermediate),
        gate_up_epilogue{bias.get(), activations.get(), intermediate, intermediate, 7.0F, 1.702F},
        down_epilogue{bias.get(), outputs.get(), hidden} {}

  // Divisor: `choices` where pairs read their token, 1 where each pair has an input of its own.
  Columns columns(std::uint32_t divisor) const { return {lists.get(), counts.get(), 0, tokens, divisor}; }
};

}  // namespace althing::bench
