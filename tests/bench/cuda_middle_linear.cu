// The linear layers of decode steps with some tens to hundreds of tokens, in the shapes of gpt-oss, by each of the three kernels that can make them:
// time, and the rate at which weights come by the middle one, in percent of the 4.64 TB/s that the device reads at most. What linear.hpp chooses by
// is read off here.
//
//   cuda_middle_linear [tokens …]
#include "gpu/cuda/middle_linear.hpp"
#include "gpu/cuda/stream_linear.hpp"
#include "gpu/cuda/tile_linear.hpp"
#include "tests/bench/linear_bench.cuh"
#include "tests/support/usage.hpp"

namespace {

using namespace althing::gpu::cuda;
using namespace althing::bench;

constexpr double wall = 4.64e12;
constexpr std::uint32_t vocabulary = 201088;

template <class Epilogue>
struct Layer {
  const BenchWeights& weights;
  const Inputs& input;
  std::uint32_t stride;
  Columns columns;
  Epilogue epilogue;
  StreamWork work;

  template <class Args>
  Args with(std::uint32_t i) const {
    Args args;
    args.weights = weights.copy(i), args.input = input.copy(i), args.input_stride = stride, args.columns = columns, args.epilogue = epilogue;
    return args;
  }
  bool known() const { return columns.counts == nullptr; }
};

template <WeightFormat Format, class Epilogue>
void compare(const char* what, const Layer<Epilogue>& layer, std::uint32_t tokens, double matrices) {
  const double stream_time = seconds([&](std::uint32_t i, cudaStream_t stream) {
    auto args = layer.template with<StreamArgs<Epilogue>>(i);
    args.weights_are_known = layer.known();
    return stream_linear(args, stream_shape(args.weights, layer.work, 132), stream);
  });
  const double middle_time = seconds([&](std::uint32_t i, cudaStream_t stream) {
    auto args = layer.template with<MiddleLinearArgs<Epilogue>>(i);
    args.columns_max = layer.work.columns_max, args.weights_are_known = layer.known();
    return middle_linear(args, stream);
  });
  const double tile_time =
      seconds([&](std::uint32_t i, cudaStream_t stream) { return tile_linear(layer.template with<TileLinearArgs<Epilogue>>(i), stream); });
  const double rate = static_cast<double>(layer.weights.matrix.matrix_bytes()) * matrices / middle_time;
  const char* names[] = {"bf16", "fp8", "mxfp4"};
  std::printf("%3u tokens  %-8s %-5s  stream %8.1f us  middle %8.1f us  tile %8.1f us   middle %5.0f GB/s %5.1f %%\n", tokens, what,
              names[static_cast<int>(Format)], stream_time * 1e6, middle_time * 1e6, tile_time * 1e6, rate * 1e-9, rate / wall * 100);
  std::fflush(stdout);
}

template <WeightFormat Format>
void attention(std::uint32_t tokens) {
  const AttentionLayer layer(Format, tokens);
  const StreamWork work{tokens, tokens, 1};
  compare<Format>("qkv", Layer<QkvEpilogue>{layer.qkv, layer.normed, hidden, layer.columns, layer.qkv_epilogue, work}, tokens, 1);
  compare<Format>("out", Layer<ResidualEpilogue>{layer.out, layer.attended, query_heads * head_dim, layer.columns, layer.out_epilogue, work}, tokens,
                  1);
}

void experts(std::uint32_t count, std::uint32_t tokens) {
  const ExpertLayer layer(WeightFormat::mxfp4, count, tokens);
  const StreamWork work{tokens, ceil_div(tokens * choices, count), std::min(count, tokens * choices)};
  const double active = layer.routing.active();
  constexpr WeightFormat format = WeightFormat::mxfp4;
  compare<format>("gate_up", Layer<SwigluEpilogue>{layer.gate_up, layer.normed, hidden, layer.columns(choices), layer.gate_up_epilogue, work}, tokens,
                  active);
  compare<format>("down", Layer<PlainEpilogue>{layer.down, layer.inner, intermediate, layer.columns(1), layer.down_epilogue, work}, tokens, active);
}

void head(std::uint32_t tokens) {
  const BenchWeights weights(WeightFormat::bf16, vocabulary, hidden, 1);
  const Inputs normed(tokens, hidden);
  const Array<float> logits(std::size_t{tokens} * vocabulary);
  Columns columns;
  columns.count = tokens;
  compare<WeightFormat::bf16>(
      "head", Layer<PlainEpilogue>{weights, normed, hidden, columns, {nullptr, logits.get(), vocabulary}, {tokens, tokens, 1}}, tokens, 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "cuda_middle_linear [TOKENS …]\n"
                             "Linear layers of decode steps by each kernel that can make them. Needs a GPU."))
    return 0;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("cuda_middle_linear: no GPU that CUDA can use here; this benchmark needs one\n", stderr);
    return 5;  // as README.md lists exit codes
  }
  cudaDeviceProp properties{};
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d processors\n", properties.name, properties.multiProcessorCount);
  std::vector<std::uint32_t> tokens = {16, 32, 64, 128, 256};
  if (argc > 1) tokens.clear();
  for (int i = 1; i < argc; ++i) tokens.push_back(static_cast<std::uint32_t>(std::atoi(argv[i])));
  for (const std::uint32_t t : tokens) {
    attention<WeightFormat::bf16>(t);
    attention<WeightFormat::fp8>(t);
    experts(32, t);
    experts(128, t);
    head(t);
  }
  return 0;
}
