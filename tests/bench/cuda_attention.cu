// How fast attention is on this GPU, in the shape of gpt-oss (64 query heads, 8 KV heads): decode by context and batch, prefill of a long prompt.
// Launches are captured in a graph and walk over layers whose keys and values together exceed the L2 cache, as in a model. Pages are scattered.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/cuda/attention.hpp"
#include "tests/bench/graph_time.cuh"
#include "tests/support/usage.hpp"

namespace {

using namespace althing::gpu::cuda;
using namespace althing::bench;

constexpr std::uint32_t query_heads = 64, kv_heads = 8, tokens_per_page = 16;
constexpr std::uint64_t layer_page_bytes = 2ull * kv_heads * 2 * tokens_per_page * attention_head_dim;

template <class T>
class Array {
 public:
  explicit Array(std::size_t size) { MUST(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(size, 1) * sizeof(T))); }
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

// Values in [-1, 1) without a pattern.
__global__ void fill(__nv_bfloat16* to, std::uint64_t size) {
  for (std::uint64_t i = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += std::uint64_t(gridDim.x) * blockDim.x) {
    std::uint32_t hash = static_cast<std::uint32_t>(i) * 2654435761u;
    hash = (hash ^ hash >> 15) * 2246822519u;
    to[i] = __float2bfloat16_rn(static_cast<float>(hash >> 8) * (1.0F / 8388608.0F) - 1.0F);
  }
}

// Rows of `context` positions; the tokens are the last `tokens` of each.
class Scene {
 public:
  Scene(std::uint32_t rows, std::uint32_t context, std::uint32_t tokens, std::uint32_t window)
      : layers_(static_cast<std::uint32_t>(std::clamp<std::uint64_t>((256ull << 20) / (std::uint64_t{rows} * context * 2 * kv_heads * 128), 1, 64))),
        pages_row_(ceil_div(context, tokens_per_page)),
        tokens_(rows * tokens),
        pages_(std::uint64_t{rows} * pages_row_ * layers_ * layer_page_bytes),
        queries_(std::uint64_t{tokens_} * query_heads * attention_head_dim),
        attended_(std::uint64_t{tokens_} * query_heads * attention_head_dim),
        table_(order(rows * pages_row_)),
        rows_(column(rows, tokens, 0, 1)),
        positions_(column(rows, tokens, context - tokens, 0)),
        sinks_(std::vector<float>(query_heads, 0.5F)) {
    fill<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(pages_.get()), std::uint64_t{rows} * pages_row_ * layers_ * layer_page_bytes / 2);
    fill<<<1024, 256>>>(queries_.get(), std::uint64_t{tokens_} * query_heads * attention_head_dim);
    MUST(cudaDeviceSynchronize());
    args_.tokens = {rows_.get(), positions_.get(), tokens_};
    args_.queries = queries_.get();
    args_.kv = {pages_.get(), layers_ * layer_page_bytes, 0, table_.get(), pages_row_, tokens_per_page, attention_head_dim};
    args_.query_heads = query_heads;
    args_.kv_heads = kv_heads;
    args_.window = window;
    args_.sinks = sinks_.get();
    args_.attended = attended_.get();
    args_.attended_stride = query_heads * attention_head_dim;
  }

  std::uint32_t layers() const { return layers_; }
  AttentionArgs layer(std::uint32_t number) const {
    AttentionArgs args = args_;
    args.kv.layer_offset = number % layers_ * layer_page_bytes;
    return args;
  }

 private:
  static std::vector<std::int32_t> order(std::uint32_t pages) {
    std::vector<std::int32_t> table(pages);
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 random(1);
    std::shuffle(table.begin(), table.end(), random);
    return table;
  }
  static std::vector<std::int32_t> column(std::uint32_t rows, std::uint32_t tokens, std::uint32_t first, std::uint32_t by_row) {
    std::vector<std::int32_t> values;
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t t = 0; t < tokens; ++t) values.push_back(static_cast<std::int32_t>(by_row ? r : first + t));
    return values;
  }

  std::uint32_t layers_;
  std::uint32_t pages_row_;
  std::uint32_t tokens_;
  Array<std::byte> pages_;
  Array<__nv_bfloat16> queries_;
  Array<__nv_bfloat16> attended_;
  Array<std::int32_t> table_;
  Array<std::int32_t> rows_;
  Array<std::int32_t> positions_;
  Array<float> sinks_;
  AttentionArgs args_;
};

// pairs: (query, position) that are looked at, a head. bytes: of keys and values that the tokens need once.
void report(const char* what, double us, double pairs, double bytes) {
  std::printf("%-46s %10.2f us %9.2f MB %7.0f GB/s %7.1f TFLOP/s\n", what, us, bytes / 1e6, bytes / us / 1e3,
              pairs * query_heads * 4 * attention_head_dim / us / 1e6);
  std::fflush(stdout);
}

struct DecodeCase {
  std::uint32_t batch;
  std::uint32_t context;
  std::uint32_t window;
};

void decode(const DecodeCase& c, std::uint32_t processors) {
  const Scene scene(c.batch, c.context, 1, c.window);
  std::vector<std::int32_t> all(c.batch);
  std::iota(all.begin(), all.end(), 0);
  const Array<std::int32_t> list(all);
  const DecodeWork work{c.batch, kv_heads, attention_segments_max(c.context, c.window)};
  const std::uint32_t chosen = attention_splits(work, processors);
  const double seen = c.window == 0 ? c.context : std::min(c.window, c.context), bytes = c.batch * seen * kv_heads * 256;
  for (const std::uint32_t splits : {chosen, chosen / 2, chosen * 2}) {
    if (splits == 0 || (splits != chosen && (chosen == 1 || splits > work.segments_max))) continue;
    const std::size_t scratch_bytes = attention_scratch_bytes(work, query_heads, splits);
    const Array<std::byte> scratch(scratch_bytes);
    MUST(cudaMemset(scratch.get(), 0, scratch_bytes));
    const double us = 1e6 * graph_seconds(std::max(scene.layers(), 16u), [&](std::uint32_t i, cudaStream_t stream) {
                        return attention_decode({scene.layer(i), list.get(), c.batch, splits, work.segments_max, scratch.get()}, stream);
                      });
    char what[80];
    std::snprintf(what, sizeof what, "decode batch %u context %u window %u splits %u%s", c.batch, c.context, c.window, splits,
                  splits == chosen ? "*" : "");
    report(what, us, c.batch * seen, bytes);
  }
}

void prefill(std::uint32_t tokens, std::uint32_t context, std::uint32_t window) {
  const Scene scene(1, context, tokens, window);
  const auto size = static_cast<std::int32_t>(prefill_tile_tokens({query_heads, kv_heads, attention_head_dim}));
  std::vector<PrefillTile> tiles;
  for (std::int32_t at = 0; at < static_cast<std::int32_t>(tokens); at += size)
    tiles.push_back({at, std::min(size, static_cast<std::int32_t>(tokens) - at)});
  const Array<PrefillTile> device_tiles(tiles);
  const double us = 1e6 * graph_seconds(8, [&](std::uint32_t i, cudaStream_t stream) {
                      return attention_prefill({scene.layer(i), device_tiles.get(), static_cast<std::uint32_t>(tiles.size())}, stream);
                    });
  double pairs = 0;
  for (std::uint32_t position = context - tokens; position < context; ++position)
    pairs += window == 0 ? position + 1 : std::min(window, position + 1);
  char what[80];
  std::snprintf(what, sizeof what, "prefill of %u to context %u window %u", tokens, context, window);
  report(what, us, pairs, double(context) * kv_heads * 256);
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_attention\n"
                             "Attention kernels by context and batch. Needs a GPU."))
    return 0;
  cudaDeviceProp device{};
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::fputs("cuda_attention: no GPU that CUDA can use here; this benchmark needs one\n", stderr);
    return 5;  // as README.md lists exit codes
  }
  MUST(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d processors; %u query heads, %u KV heads, pages of %u\n", device.name, device.multiProcessorCount, query_heads, kv_heads,
              tokens_per_page);
  const auto processors = static_cast<std::uint32_t>(device.multiProcessorCount);
  for (const std::uint32_t batch : {1u, 8u, 64u})
    for (const std::uint32_t context : {1024u, 8192u, 65536u}) decode({batch, context, 0}, processors);
  for (const std::uint32_t batch : {1u, 64u}) decode({batch, 8192, 128}, processors);
  prefill(8192, 8192, 0);
  prefill(8192, 8192, 128);
  prefill(2048, 8192, 0);
  prefill(256, 8192, 0);
  return 0;
}
