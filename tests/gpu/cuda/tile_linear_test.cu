// The prefill linear layers: against sums in double, and bit by bit against a plain kernel that follows numerics.hpp with mma.sync, one column tile
// at a time, and against the decode kernel. That pins the promise that no bit depends on how many columns there are or which ones.
#include "gpu/cuda/tile_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/stream_linear.hpp"
#include "tests/gpu/cuda/linear_problem.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

template <class Epilogue>
__device__ __forceinline__ void store_one(const Epilogue& epilogue, std::uint32_t expert, std::uint32_t tile, std::uint32_t j, std::int32_t column,
                                          float low, float high) {
  const auto rows = epilogue.rows(expert, tile, j);
  const std::int32_t columns[1] = {column};
  typename Epilogue::Place places[1];
  epilogue.places(rows, columns, places);
  epilogue.finish(rows, places[0], low, high);
}

// Weights as plain bf16 (count, row_tiles * 16, k_padded), exact for every format. One warp makes 16 rows of 8 columns. Grid: (row tiles, column
// tiles, count).
template <class Epilogue>
__global__ void reference_linear(const std::uint16_t* weights, TileLinearArgs<Epilogue> args) {
  const std::uint32_t expert = blockIdx.z, g = threadIdx.x / 4, q = threadIdx.x % 4, first = blockIdx.y * 8;
  const std::uint32_t count = args.columns.counts != nullptr ? args.columns.counts[expert] : args.columns.count;
  if (first >= count) return;
  const std::uint32_t padded = k_padded(args.weights.in), segment = k_tile / 16 * k_segment_tiles(args.weights.in);
  const auto id = [&](std::uint32_t column) {
    return args.columns.index != nullptr ? args.columns.index[expert * args.columns.capacity + column] : static_cast<std::int32_t>(column);
  };
  const std::uint16_t* rows = weights + (std::uint64_t(expert) * args.weights.row_tiles() + blockIdx.x) * 16 * padded;
  const auto* input =
      reinterpret_cast<const std::uint16_t*>(args.input) + std::uint64_t(id(min(first + g, count - 1)) / args.columns.divisor) * args.input_stride;
  const auto two = [](const std::uint16_t* at) { return *reinterpret_cast<const std::uint32_t*>(at); };
  float total[4] = {}, chain[4] = {};
  const std::uint32_t steps = padded / 16;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t k = step * 16 + 2 * q;
    const std::uint32_t a[4] = {two(rows + g * padded + k), two(rows + (g + 8) * padded + k), two(rows + g * padded + k + 8),
                                two(rows + (g + 8) * padded + k + 8)};
    mma_bf16(chain, a, two(input + k), two(input + k + 8));
    if ((step + 1) % segment != 0 && step + 1 != steps) continue;
    for (int i = 0; i < 4; ++i) {
      total[i] = step < segment ? chain[i] : total[i] + chain[i];
      chain[i] = 0;
    }
  }
  for (std::uint32_t i = 0; i < 2; ++i)
    if (first + 2 * q + i < count) store_one(args.epilogue, expert, blockIdx.x, g, id(first + 2 * q + i), total[i], total[i + 2]);
}

template <class Epilogue>
TileLinearArgs<Epilogue> arguments(const Weights& w, const DeviceArray<std::uint16_t>& input, const Columns& columns, const Epilogue& epilogue) {
  return {w.packed, reinterpret_cast<const __nv_bfloat16*>(input.get()), k_padded(w.packed.in), columns, epilogue};
}

template <class Epilogue>
void run_reference(const Weights& w, const TileLinearArgs<Epilogue>& args) {
  const std::uint32_t columns = args.columns.counts != nullptr ? args.columns.capacity : args.columns.count;
  reference_linear<<<dim3(w.packed.row_tiles(), ceil_div(columns, 8), w.packed.count), 32>>>(w.plain->get(), args);
  must(cudaGetLastError());
  must(cudaDeviceSynchronize());
}

TEST(CudaTileLinear, pieces_cover_the_matrix_once) {
  for (const std::uint32_t rows : {1u, 15u, 16u, 17u, 23u, 45u})
    for (const std::uint32_t columns : {1u, 2u, 5u}) {
      std::vector<int> seen(rows * columns);
      for (std::uint32_t i = 0; i < rows * columns; ++i) {
        const TileWork work = tile_work(i, rows, columns);
        ASSERT_LT(work.row_block, rows);
        ASSERT_LT(work.column_block, columns);
        ++seen[work.row_block * columns + work.column_block];
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size())) << rows << " x " << columns;
    }
}

TEST(CudaTileLinear, is_the_sum_in_double_to_rounding) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t columns = 130;
  for (const WeightFormat format : formats)
    for (const auto& [out, in] : {std::pair{720u, 2880u}, {192u, 192u}, {300u, 1440u}, {144u, 4096u}, {64u, 720u}}) {
      std::mt19937 random(out + in);
      const Weights w = random_weights(format, out, in, 1, random);
      const auto x = random_input(columns, in, random);
      std::vector<float> bias(out);
      for (auto& b : bias) b = std::normal_distribution<float>(0.0F, 1.0F)(random);
      const DeviceArray<std::uint16_t> input(x);
      const DeviceArray<float> device_bias(bias), output(std::size_t{columns} * out);
      const auto args = arguments(w, input, {.count = columns}, PlainEpilogue{device_bias.get(), output.get(), out});
      ASSERT_EQ(tile_linear(args, nullptr), cudaSuccess);
      EXPECT_LT(relative_error(w.matrices[0], x, bias, output.host()), 1e-5) << out << " x " << in << ", format " << static_cast<int>(format);
    }
}

TEST(CudaTileLinear, bits_are_those_of_the_plain_kernel_for_any_columns_in_any_order) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t tokens = 300;
  for (const WeightFormat format : formats)
    for (const auto& [out, in] : {std::pair{720u, 2880u}, {5760u, 512u}, {2880u, 1440u}, {100u, 192u}, {272u, 4096u}, {128u, 64u}}) {
      std::mt19937 random(3 * out + in);
      const Weights w = random_weights(format, out, in, 1, random);
      const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
      DeviceArray<float> expected(std::size_t{tokens} * out), output(std::size_t{tokens} * out);
      run_reference(w, arguments(w, input, {.count = tokens}, PlainEpilogue{nullptr, expected.get(), out}));
      const auto reference = expected.host();
      std::vector<std::int32_t> order(tokens);
      std::iota(order.begin(), order.end(), 0);
      for (const std::uint32_t columns : {300u, 1u, 8u, 127u, 128u, 129u, 256u}) {
        const DeviceArray<std::int32_t> index(order);
        output.fill(0xFF);
        const auto args =
            arguments(w, input, {.index = index.get(), .count = columns, .capacity = tokens}, PlainEpilogue{nullptr, output.get(), out});
        ASSERT_EQ(tile_linear(args, nullptr), cudaSuccess);
        auto wanted = std::vector<float>(reference.size());
        std::memset(wanted.data(), 0xFF, wanted.size() * 4);
        for (std::uint32_t c = 0; c < columns; ++c)
          std::copy_n(reference.begin() + std::size_t(order[c]) * out, out, wanted.begin() + std::size_t(order[c]) * out);
        EXPECT_TRUE(same_bits(output.host(), wanted))
            << out << " x " << in << ", format " << static_cast<int>(format) << ", " << columns << " columns";
        std::shuffle(order.begin(), order.end(), random);
      }
    }
}

template <WeightFormat Format>
void expect_decode_bits(std::uint32_t out, std::uint32_t in) {
  constexpr std::uint32_t tokens = 33;
  std::mt19937 random(out * 5 + in);
  const Weights w = random_weights(Format, out, in, 1, random);
  const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
  DeviceArray<float> prefill(std::size_t{tokens} * out), decode(std::size_t{tokens} * out);
  const auto args = arguments(w, input, {.count = tokens}, PlainEpilogue{nullptr, prefill.get(), out});
  ASSERT_EQ(tile_linear(args, nullptr), cudaSuccess);
  StreamArgs<PlainEpilogue> stream{args.weights, args.input, args.input_stride, args.columns, {nullptr, decode.get(), out}};
  ASSERT_EQ(stream_linear(stream, stream_shape(args.weights, {tokens, tokens, 1}, 132), nullptr), cudaSuccess);
  EXPECT_TRUE(same_bits(prefill.host(), decode.host())) << out << " x " << in << ", format " << static_cast<int>(Format);
}

TEST(CudaTileLinear, bits_are_those_of_decode) {
  ALTHING_NEEDS_GPU();
  for (const auto& [out, in] : {std::pair{720u, 2880u}, {384u, 4096u}, {192u, 192u}, {100u, 1440u}}) {
    expect_decode_bits<WeightFormat::bf16>(out, in);
    expect_decode_bits<WeightFormat::fp8>(out, in);
    expect_decode_bits<WeightFormat::mxfp4>(out, in);
  }
}

void expect_expert_bits(WeightFormat format, const std::vector<std::uint32_t>& counts, std::uint32_t intermediate, std::uint32_t in) {
  constexpr std::uint32_t choices = 4;
  std::mt19937 random(intermediate + in + static_cast<std::uint32_t>(counts.size()));
  const auto experts = static_cast<std::uint32_t>(counts.size());
  const Pairs pairs = spread(counts, choices, random);
  const Weights w = random_weights(format, 2 * intermediate, in, experts, random, RowOrder::interleaved);
  const DeviceArray<std::uint16_t> input(random_input(pairs.tokens, in, random));
  const DeviceArray<std::uint32_t> device_counts(counts);
  const DeviceArray<std::int32_t> lists(pairs.lists);
  std::vector<float> bias(std::size_t{experts} * 2 * intermediate);
  for (auto& b : bias) b = std::normal_distribution<float>(0.0F, 1.0F)(random);
  const DeviceArray<float> device_bias(bias);
  const std::size_t all = std::size_t{pairs.tokens} * choices;
  const Columns columns{lists.get(), device_counts.get(), 0, pairs.capacity, choices};

  const std::uint32_t stride = k_padded(intermediate);
  DeviceArray<std::uint16_t> inner(all * stride), inner_expected(all * stride);
  const auto swiglu_to = [&](DeviceArray<std::uint16_t>& to) {
    return SwigluEpilogue{device_bias.get(), reinterpret_cast<__nv_bfloat16*>(to.get()), intermediate, stride, 7.0F, 1.702F};
  };
  ASSERT_EQ(tile_linear(arguments(w, input, columns, swiglu_to(inner)), nullptr), cudaSuccess);
  run_reference(w, arguments(w, input, columns, swiglu_to(inner_expected)));
  EXPECT_TRUE(same_bits(inner.host(), inner_expected.host())) << "gate and up, " << experts << " experts, format " << static_cast<int>(format);

  DeviceArray<float> output(all * 2 * intermediate), output_expected(all * 2 * intermediate);
  ASSERT_EQ(tile_linear(arguments(w, input, columns, PlainEpilogue{device_bias.get(), output.get(), 2 * intermediate}), nullptr), cudaSuccess);
  run_reference(w, arguments(w, input, columns, PlainEpilogue{device_bias.get(), output_expected.get(), 2 * intermediate}));
  EXPECT_TRUE(same_bits(output.host(), output_expected.host())) << "plain, " << experts << " experts, format " << static_cast<int>(format);
}

TEST(CudaTileLinear, experts_take_their_own_columns) {
  ALTHING_NEEDS_GPU();
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::bf16}) {
    expect_expert_bits(format, {0, 1, 127, 128, 129, 500, 0}, 360, 192);
    expect_expert_bits(format, {0, 0, 3}, 96, 576);
    expect_expert_bits(format, {700}, 720, 2880);
    expect_expert_bits(format, {0, 0}, 96, 192);
    std::vector<std::uint32_t> many(128);
    for (std::size_t e = 0; e < many.size(); ++e) many[e] = static_cast<std::uint32_t>(e * 37 % 150);
    expect_expert_bits(format, many, 96, 192);
  }
}

TEST(CudaTileLinear, residual_is_added_once) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t out = 200, in = 512, tokens = 150;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8})
    for (const bool biased : {false, true}) {
      std::mt19937 random(17);
      const Weights w = random_weights(format, out, in, 1, random);
      const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
      std::vector<float> before(tokens * out), bias(out);
      for (auto& v : before) v = std::normal_distribution<float>(0.0F, 3.0F)(random);
      for (auto& v : bias) v = std::normal_distribution<float>(0.0F, 1.0F)(random);
      const DeviceArray<float> residual(before), device_bias(bias), sums(before.size());
      const float* given = biased ? device_bias.get() : nullptr;
      ASSERT_EQ(tile_linear(arguments(w, input, {.count = tokens}, ResidualEpilogue{given, residual.get(), out}), nullptr), cudaSuccess);
      run_reference(w, arguments(w, input, {.count = tokens}, PlainEpilogue{given, sums.get(), out}));
      std::vector<float> expected = sums.host();
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = before[i] + expected[i];
      EXPECT_TRUE(same_bits(residual.host(), expected));
    }
}

TEST(CudaTileLinear, queries_keys_and_values_go_to_their_places) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t head_dim = 64, query_heads = 4, kv_heads = 2, heads = query_heads + 2 * kv_heads, out = heads * head_dim, in = 192;
  constexpr std::uint32_t tokens = 140, page_tokens = 16, pages = 32, table_stride = 8, layer_offset = 512;
  constexpr std::uint32_t page_elements = 2 * kv_heads * page_tokens * head_dim + layer_offset / 2;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8}) {
    std::mt19937 random(23);
    const Weights w = random_weights(format, out, in, 1, random, RowOrder::halves, head_dim);
    const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
    std::vector<float> bias(out), cosine(tokens * head_dim / 2), sine(cosine.size());
    for (auto* values : {&bias, &cosine, &sine})
      for (auto& v : *values) v = std::normal_distribution<float>(0.0F, 1.0F)(random);
    // Three rows of tokens with gaps, and places without a row.
    std::vector<std::int32_t> rows(tokens), positions(tokens), table(3 * table_stride);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    for (std::uint32_t t = 0; t < tokens; ++t)
      rows[t] = t >= 130 ? -1 : static_cast<std::int32_t>(t % 3), positions[t] = static_cast<std::int32_t>(t / 3 + t % 3);
    const DeviceArray<float> device_bias(bias), device_cosine(cosine), device_sine(sine);
    const DeviceArray<std::int32_t> device_rows(rows), device_positions(positions), device_table(table);
    DeviceArray<std::uint16_t> queries(tokens * query_heads * head_dim), kv(pages * page_elements);
    DeviceArray<std::uint16_t> queries_expected(queries.size()), kv_expected(kv.size());
    const auto epilogue = [&](DeviceArray<std::uint16_t>& q, DeviceArray<std::uint16_t>& cache) {
      QkvEpilogue e;
      e.bias = device_bias.get(), e.cosine = device_cosine.get(), e.sine = device_sine.get();
      e.queries = reinterpret_cast<__nv_bfloat16*>(q.get());
      e.tokens = {device_rows.get(), device_positions.get(), tokens};
      e.kv = {reinterpret_cast<std::byte*>(cache.get()), page_elements * 2, layer_offset, device_table.get(), table_stride, page_tokens, head_dim};
      e.query_heads = query_heads, e.kv_heads = kv_heads, e.head_dim = head_dim;
      return e;
    };
    ASSERT_EQ(tile_linear(arguments(w, input, {.count = tokens}, epilogue(queries, kv)), nullptr), cudaSuccess);
    run_reference(w, arguments(w, input, {.count = tokens}, epilogue(queries_expected, kv_expected)));
    const auto q = queries.host(), cache = kv.host();
    EXPECT_TRUE(same_bits(q, queries_expected.host()));
    EXPECT_TRUE(same_bits(cache, kv_expected.host()));

    // The epilogue itself, from plain sums.
    const DeviceArray<float> sums(std::size_t{tokens} * out);
    run_reference(w, arguments(w, input, {.count = tokens}, PlainEpilogue{nullptr, sums.get(), out}));
    const auto packed_sums = sums.host();
    std::vector<float> y(packed_sums.size());
    for (std::uint32_t t = 0; t < tokens; ++t)
      for (std::uint32_t r = 0; r < out; ++r) {
        const std::uint32_t row = source_row(RowOrder::halves, head_dim, r);
        y[t * out + row] = packed_sums[t * out + r] + bias[row];
      }
    std::vector<std::uint16_t> cache_wanted(cache.size(), 0xFFFF);
    for (std::uint32_t t = 0; t < tokens; ++t)
      for (std::uint32_t head = 0; head < heads; ++head)
        for (std::uint32_t d = 0; d < head_dim; ++d) {
          const std::uint32_t half = head_dim / 2, i = d % half;
          const float* v = y.data() + t * out + head * head_dim;
          const float c = cosine[t * half + i], s = sine[t * half + i];
          const float turned = head >= query_heads + kv_heads ? v[d] : d < half ? v[i] * c - v[i + half] * s : v[i + half] * c + v[i] * s;
          if (head < query_heads) {
            ASSERT_NEAR(bf16_value(q[(t * query_heads + head) * head_dim + d]), turned, 0.004 * std::fabs(turned) + 1e-5);
          } else if (rows[t] >= 0) {
            const bool value = head >= query_heads + kv_heads;
            const std::uint32_t kv_head = (head - query_heads) % kv_heads, position = static_cast<std::uint32_t>(positions[t]);
            const auto page = static_cast<std::uint32_t>(table[static_cast<std::uint32_t>(rows[t]) * table_stride + position / page_tokens]);
            const std::size_t at = std::size_t{page} * page_elements + layer_offset / 2 +
                                   ((kv_head * 2 + (value ? 1 : 0)) * page_tokens + position % page_tokens) * head_dim + d;
            cache_wanted[at] = cache[at];
            ASSERT_NEAR(bf16_value(cache[at]), turned, 0.004 * std::fabs(turned) + 1e-5);
          }
        }
    EXPECT_TRUE(same_bits(cache, cache_wanted)) << "something was written where no token belongs";
  }
}

TEST(CudaTileLinear, refuses_what_does_not_fit) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(29);
  const Weights w = random_weights(WeightFormat::mxfp4, 64, 192, 1, random);
  const DeviceArray<std::uint16_t> input(random_input(4, 192, random));
  DeviceArray<float> output(4 * 64);
  const auto plain = arguments(w, input, {.count = 4}, PlainEpilogue{nullptr, output.get(), 64});
  const auto refused = [&](auto change) {
    auto args = plain;
    change(args);
    return tile_linear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& a) { a.input_stride = 191; }));
  EXPECT_TRUE(refused([](auto& a) { a.input_stride = 128; }));
  EXPECT_TRUE(refused([](auto& a) { a.columns.divisor = 0; }));
  EXPECT_TRUE(refused([](auto& a) { a.weights.count = tile_experts_max + 1; }));
  EXPECT_TRUE(refused([](auto& a) { a.weights.data = nullptr; }));
  EXPECT_EQ(tile_linear(arguments(w, input, {.count = 4}, ResidualEpilogue{nullptr, output.get(), 64}), nullptr), cudaErrorInvalidValue);
  EXPECT_FALSE(refused([](auto& a) { a.columns.count = 0; }));
  must(cudaDeviceSynchronize());
}

// For sanitizers, which are slow. Residual and qkv run beside the kernel for batches of decode.
TEST(CudaSmall, tile_linear) {
  ALTHING_NEEDS_GPU();
  expect_expert_bits(WeightFormat::mxfp4, {0, 3, 17}, 32, 192);
  expect_expert_bits(WeightFormat::bf16, {129}, 32, 64);
  expect_decode_bits<WeightFormat::fp8>(33, 720);
}

}  // namespace
}  // namespace althing::tests
