// How fast the prefill linear layers are on this GPU, in the shapes of gpt-oss: 8192 tokens (and shorter prompts), experts by MXFP4 with 4 pairs a
// token. Weights, inputs and outputs rotate through copies that together exceed the L2 cache, as layers do in a model. Values are random: power
// counts.
//
//   cuda_tile_linear [tokens …]
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/tile_linear.hpp"
#include "tests/bench/linear_bench.cuh"
#include "tests/support/usage.hpp"

namespace {

using namespace althing::gpu::cuda;
using namespace althing::bench;

constexpr double library_peak = 789e12;  // a bf16 product of 8192 cubed by the vendor's library, on an H200
void report(const char* what, const PackedMatrix& m, std::uint32_t columns, double time) {
  const char* names[] = {"bf16", "fp8", "mxfp4"};
  const double rate = 2.0 * m.out * m.in * columns / time;
  std::printf("%-8s %-5s %3u x %u x %u, %6u columns %9.1f us %7.1f TFLOP/s %5.1f %% of the library's\n", what, names[static_cast<int>(m.format)],
              m.count, m.out, m.in, columns, time * 1e6, rate * 1e-12, 100 * rate / library_peak);
  std::fflush(stdout);
}

void attention(WeightFormat format, std::uint32_t tokens) {
  const AttentionLayer layer(format, tokens);
  report(
      "qkv", layer.qkv.matrix, tokens, seconds([&](std::uint32_t i, cudaStream_t stream) {
        return tile_linear(TileLinearArgs<QkvEpilogue>{layer.qkv.copy(i), layer.normed.copy(i), hidden, layer.columns, layer.qkv_epilogue}, stream);
      }));
  report("out", layer.out.matrix, tokens, seconds([&](std::uint32_t i, cudaStream_t stream) {
           const std::uint32_t stride = query_heads * head_dim;
           return tile_linear(TileLinearArgs<ResidualEpilogue>{layer.out.copy(i), layer.attended.copy(i), stride, layer.columns, layer.out_epilogue},
                              stream);
         }));
}

void experts(WeightFormat format, std::uint32_t count, std::uint32_t tokens) {
  const ExpertLayer layer(format, count, tokens);
  report("gate_up", layer.gate_up.matrix, tokens * choices, seconds([&](std::uint32_t i, cudaStream_t stream) {
           const Columns columns = layer.columns(choices);
           return tile_linear(TileLinearArgs<SwigluEpilogue>{layer.gate_up.copy(i), layer.normed.copy(i), hidden, columns, layer.gate_up_epilogue},
                              stream);
         }));
  report("down", layer.down.matrix, tokens * choices, seconds([&](std::uint32_t i, cudaStream_t stream) {
           const Columns columns = layer.columns(1);
           return tile_linear(TileLinearArgs<PlainEpilogue>{layer.down.copy(i), layer.inner.copy(i), intermediate, columns, layer.down_epilogue},
                              stream);
         }));
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_tile_linear [TOKENS …]\n"
                             "Linear layers of a prefill. Needs a GPU."))
    return 0;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("cuda_tile_linear: no GPU that CUDA can use here; this benchmark needs one\n", stderr);
    return 5;  // as README.md lists exit codes
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
