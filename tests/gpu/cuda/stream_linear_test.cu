// The linear layers of decode against sums in double, and the promise that bits do not depend on batch, shape or neighbours.
#include "gpu/cuda/stream_linear.hpp"

#include <gtest/gtest.h>

#include "gpu/cuda/epilogues.cuh"
#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/cuda/host_packing.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

struct Problem {
  HostMatrix matrix;
  std::vector<std::uint16_t> input;  // (columns, k_padded)
  std::uint32_t columns = 0;
};

Problem random_problem(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t columns, std::uint32_t seed) {
  std::mt19937 random(seed);
  Problem p{random_matrix(format, RowOrder::natural, 0, out, in, random), {}, columns};
  p.input.assign(std::size_t{columns} * k_padded(in), 0);
  for (std::uint32_t c = 0; c < columns; ++c) {
    const auto row = random_bf16(in, random);
    std::copy(row.begin(), row.end(), p.input.begin() + c * k_padded(in));
  }
  return p;
}

template <WeightFormat Format>
std::vector<float> run(const Problem& p, const std::vector<std::int32_t>& picked, std::uint32_t expected, std::uint32_t processors) {
  DeviceArray<std::byte> tiles(p.matrix.tiles);
  DeviceArray<__nv_bfloat16> input(p.input.size());
  must(cudaMemcpy(input.get(), p.input.data(), p.input.size() * 2, cudaMemcpyHostToDevice));
  DeviceArray<std::int32_t> index(picked);
  DeviceArray<float> output(std::size_t{p.columns} * p.matrix.out);
  StreamArgs<PlainEpilogue> args;
  args.weights = {Format, tiles.get(), p.matrix.out, p.matrix.in, 1};
  args.input = input.get();
  args.input_stride = k_padded(p.matrix.in);
  args.columns = {index.get(), nullptr, static_cast<std::uint32_t>(picked.size()), static_cast<std::uint32_t>(picked.size()), 1};
  args.epilogue = {nullptr, output.get(), p.matrix.out};
  const auto shape = stream_shape(args.weights, {static_cast<std::uint32_t>(picked.size()), expected, 1}, processors);
  must(stream_linear(args, shape, nullptr));
  return output.host();
}

std::vector<std::int32_t> first(std::uint32_t count) {
  std::vector<std::int32_t> all(count);
  for (std::uint32_t i = 0; i < count; ++i) all[i] = static_cast<std::int32_t>(i);
  return all;
}

template <WeightFormat Format>
void matches_double(std::uint32_t out, std::uint32_t in, std::uint32_t columns) {
  const Problem p = random_problem(Format, out, in, columns, out + in + columns);
  const auto y = run<Format>(p, first(columns), columns, 132);
  double error = 0, norm = 0;
  for (std::uint32_t c = 0; c < columns; ++c)
    for (std::uint32_t r = 0; r < out; ++r) {
      double exact = 0;
      for (std::uint32_t k = 0; k < in; ++k) exact += double{p.matrix.values[std::size_t{r} * in + k]} * bf16_value(p.input[c * k_padded(in) + k]);
      const double got = y[std::size_t{c} * out + r];
      error += (got - exact) * (got - exact), norm += exact * exact;
    }
  EXPECT_LT(std::sqrt(error / norm), 1e-5) << out << " x " << in << ", " << columns << " columns";
}

template <WeightFormat Format>
void bits_stay(std::uint32_t out, std::uint32_t in) {
  const Problem p = random_problem(Format, out, in, 40, 7);
  const auto all = run<Format>(p, first(40), 40, 132);
  for (const std::uint32_t processors : {1u, 17u, 132u})
    for (const std::uint32_t expected : {1u, 9u, 32u}) {
      const auto again = run<Format>(p, first(40), expected, processors);
      EXPECT_EQ(std::memcmp(all.data(), again.data(), all.size() * 4), 0) << processors << " processors, made for " << expected;
    }
  const std::vector<std::int32_t> some = {39, 3, 17};
  const auto few = run<Format>(p, some, 3, 132);
  for (const std::int32_t c : some)
    EXPECT_EQ(std::memcmp(all.data() + std::size_t(c) * out, few.data() + std::size_t(c) * out, out * 4), 0) << "column " << c;
}

// No launch asks for more than a multiprocessor has, and the matrices of the models are all supported.
TEST(CudaStreamLinear, shapes_fit_a_multiprocessor) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8, WeightFormat::mxfp4})
    for (const std::uint32_t in : {64u, 192u, 256u, 720u, 1440u, 2880u, 4096u, 7168u})
      for (const std::uint32_t columns : {1u, 5u, 8u, 16u, 24u, 100u}) {
        const PackedMatrix m{format, nullptr, 2880, in, 1};
        EXPECT_TRUE(supports_stream(m)) << in;
        const StreamShape s = stream_shape(m, {columns, columns, 1}, 132);
        EXPECT_GT(s.column_tiles, 0u);
        EXPECT_GE(s.pieces, 1u);
        EXPECT_LE(s.shared_bytes, stream_shared_max);
        EXPECT_LE(s.segments * s.groups, stream_warps(stream_segment(in), s.column_tiles));
        EXPECT_GE(s.segments * s.groups, std::min(9u, s.segments * stream_groups_max)) << "in " << in << ", " << columns << " columns";
        EXPECT_LE(s.blocks, 132u);
      }
  const PackedMatrix experts{WeightFormat::mxfp4, nullptr, 5760, 2880, 32};
  EXPECT_EQ(stream_shape(experts, {stream_columns_few, 1, 4}, 132).groups, stream_warps_few / 9);
  EXPECT_EQ(stream_shape(experts, {stream_columns_few + 1, 1, 4}, 132).groups, 3u);
}

TEST(CudaStreamLinear, bf16_is_the_sum_in_double_to_rounding) {
  ALTHING_NEEDS_GPU();
  for (const auto& [out, in] : {std::pair{5120u, 2880u}, {2880u, 4096u}, {192u, 192u}, {100u, 720u}, {33u, 1440u}, {2304u, 256u}})
    for (const std::uint32_t columns : {1u, 3u, 8u, 16u, 33u}) matches_double<WeightFormat::bf16>(out, in, columns);
}
TEST(CudaStreamLinear, mxfp4_is_the_sum_in_double_to_rounding) {
  ALTHING_NEEDS_GPU();
  for (const auto& [out, in] : {std::pair{5760u, 2880u}, {2880u, 2880u}, {384u, 192u}, {720u, 1440u}})
    for (const std::uint32_t columns : {1u, 5u, 12u, 32u}) matches_double<WeightFormat::mxfp4>(out, in, columns);
}
TEST(CudaStreamLinear, fp8_is_the_sum_in_double_to_rounding) {
  ALTHING_NEEDS_GPU();
  for (const auto& [out, in] : {std::pair{5120u, 2880u}, {2880u, 4096u}, {144u, 192u}})
    for (const std::uint32_t columns : {1u, 8u, 30u}) matches_double<WeightFormat::fp8>(out, in, columns);
}
TEST(CudaStreamLinear, bits_do_not_depend_on_shape_or_batch) {
  ALTHING_NEEDS_GPU();
  bits_stay<WeightFormat::bf16>(2880, 4096);
  bits_stay<WeightFormat::mxfp4>(720, 2880);
  bits_stay<WeightFormat::bf16>(200, 1440);
  bits_stay<WeightFormat::fp8>(512, 2880);
}

// Experts: only those with columns are computed, each from its own list, whatever the order of the list.
TEST(CudaStreamLinear, experts_take_their_own_columns) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t experts = 5, out = 64, in = 192, tokens = 12, capacity = 12;
  std::mt19937 random(3);
  std::vector<std::byte> tiles;
  std::vector<HostMatrix> matrices;
  for (std::uint32_t e = 0; e < experts; ++e) {
    matrices.push_back(random_matrix(WeightFormat::mxfp4, RowOrder::natural, 0, out, in, random));
    tiles.insert(tiles.end(), matrices.back().tiles.begin(), matrices.back().tiles.end());
  }
  const auto input = random_bf16(tokens * in, random);
  const std::vector<std::uint32_t> counts = {0, 12, 1, 0, 7};
  std::vector<std::int32_t> pairs(experts * capacity, -1);
  for (std::uint32_t c = 0; c < 12; ++c) pairs[1 * capacity + c] = static_cast<std::int32_t>(2 * (11 - c));
  pairs[2 * capacity] = 5;
  for (std::uint32_t c = 0; c < 7; ++c) pairs[4 * capacity + c] = static_cast<std::int32_t>(2 * c + 1 + (c > 1 ? 2 : 0));
  DeviceArray<std::byte> weights(tiles);
  DeviceArray<__nv_bfloat16> x(input.size());
  must(cudaMemcpy(x.get(), input.data(), input.size() * 2, cudaMemcpyHostToDevice));
  DeviceArray<std::uint32_t> device_counts(counts);
  DeviceArray<std::int32_t> lists(pairs);
  DeviceArray<float> y(std::size_t{tokens} * 2 * out);
  StreamArgs<PlainEpilogue> args;
  args.weights = {WeightFormat::mxfp4, weights.get(), out, in, experts};
  args.input = x.get();
  args.input_stride = in;
  args.columns = {lists.get(), device_counts.get(), 0, capacity, 2};
  args.epilogue = {nullptr, y.get(), out};
  for (const auto& [known, processors] : {std::pair{false, 132u}, {true, 132u}, {true, 3u}, {false, 1u}}) {
    y.fill(0xFF);
    args.weights_are_known = known;
    must(stream_linear(args, stream_shape(args.weights, {12, 2, 5}, processors), nullptr));
    const auto got = y.host();
    std::uint32_t written = 0;
    for (std::uint32_t e = 0; e < experts; ++e)
      for (std::uint32_t c = 0; c < counts[e]; ++c) {
        const std::int32_t pair = pairs[e * capacity + c];
        for (std::uint32_t r = 0; r < out; ++r, ++written) {
          double exact = 0;
          for (std::uint32_t k = 0; k < in; ++k) exact += double{matrices[e].values[r * in + k]} * bf16_value(input[std::size_t(pair / 2) * in + k]);
          EXPECT_NEAR(got[std::size_t(pair) * out + r], exact, 1e-4) << "expert " << e << " pair " << pair;
        }
      }
    std::uint32_t poisoned = 0;
    for (const float v : got) poisoned += std::isnan(v) ? 1 : 0;
    EXPECT_EQ(poisoned + written, got.size());
  }
}

// For sanitizers, which are slow: every format once.
TEST(CudaSmall, stream_linear) {
  ALTHING_NEEDS_GPU();
  matches_double<WeightFormat::bf16>(33, 720, 3);
  matches_double<WeightFormat::mxfp4>(48, 192, 9);
  matches_double<WeightFormat::fp8>(33, 192, 1);
}

}  // namespace
}  // namespace althing::tests
