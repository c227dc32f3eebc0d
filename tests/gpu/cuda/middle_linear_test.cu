// The linear layers for batches of decode: against sums in double, and bit by bit against the kernels for fewer and for more columns. Runs and splits
// are looked at without a device.
#include "gpu/cuda/middle_linear.hpp"

#include <gtest/gtest.h>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/stream_linear.hpp"
#include "tests/gpu/cuda/linear_problem.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

template <class Epilogue>
MiddleLinearArgs<Epilogue> arguments(const Weights& w, const DeviceArray<std::uint16_t>& input, const Columns& columns, std::uint32_t columns_max,
                                     const Epilogue& epilogue) {
  MiddleLinearArgs<Epilogue> args;
  args.weights = w.packed;
  args.input = reinterpret_cast<const __nv_bfloat16*>(input.get());
  args.input_stride = k_padded(w.packed.in);
  args.columns = columns;
  args.epilogue = epilogue;
  args.columns_max = columns_max;
  args.weights_are_known = columns.counts == nullptr;
  return args;
}

// The same layer by the kernel of prefill.
template <class Epilogue>
void run_tile(const MiddleLinearArgs<Epilogue>& args) {
  ASSERT_EQ(tile_linear(TileLinearArgs<Epilogue>{args.weights, args.input, args.input_stride, args.columns, args.epilogue}, nullptr), cudaSuccess);
}

// By that of few columns.
template <class Epilogue>
void run_stream(const MiddleLinearArgs<Epilogue>& args) {
  StreamArgs<Epilogue> few;
  few.weights = args.weights, few.input = args.input, few.input_stride = args.input_stride, few.columns = args.columns, few.epilogue = args.epilogue;
  const StreamShape shape = stream_shape(args.weights, {args.columns_max, args.columns_max, 1}, 132);
  ASSERT_EQ(stream_linear(few, shape, nullptr), cudaSuccess);
}

std::vector<float> random_floats(std::size_t size, std::mt19937& random) {
  std::vector<float> values(size);
  for (auto& v : values) v = std::normal_distribution<float>(0.0F, 1.0F)(random);
  return values;
}

constexpr std::uint32_t column_counts[] = {1, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 200, 256};

TEST(CudaMiddleLinear, runs_are_cut_into_pieces_that_cover_them_once) {
  for (const std::uint32_t row_tiles : {1u, 5u, 45u, 360u})
    for (const std::uint32_t column_blocks : {0u, 1u, 3u, 32u})
      for (const std::uint32_t blocks : {1u, 7u, 132u}) {
        std::vector<int> seen(std::size_t{row_tiles} * column_blocks);
        for (std::uint32_t b = 0; b < blocks; ++b) {
          const std::uint32_t end = whole_run_begin(column_blocks, row_tiles, b + 1, blocks);
          ASSERT_LE(end, seen.size());
          for (std::uint32_t at = whole_run_begin(column_blocks, row_tiles, b, blocks); at < end;) {
            const WholePiece piece = whole_piece(at, end, row_tiles, 16);
            ASSERT_GT(piece.tiles, 0u);
            ASSERT_LE(piece.tiles, 16u);
            ASSERT_LE(piece.row + piece.tiles, row_tiles);
            for (std::uint32_t i = 0; i < piece.tiles; ++i) ++seen.at(std::size_t{piece.column_block} * row_tiles + piece.row + i);
            at += piece.tiles;
          }
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size()));
      }
}

TEST(CudaMiddleLinear, splits_hold_their_sums_and_exchange_them_in_shared_memory) {
  const auto shape = [](std::uint32_t out, std::uint32_t in, std::uint32_t columns) {
    return split_shape({WeightFormat::bf16, nullptr, out, in, 1}, columns, 132);
  };
  for (const std::uint32_t in : {64u, 192u, 512u, 720u, 1440u, 2048u, 2880u, 4096u, 5760u})
    for (const std::uint32_t out : {16u, 720u, 2880u, 5120u, 201088u})
      for (const std::uint32_t columns : {1u, 32u, 64u, 65u, 256u}) {
        const SplitShape s = shape(out, in, columns);
        const std::uint32_t segments = k_segments(in);
        ASSERT_GT(s.parts, 0u);
        ASSERT_LE(s.parts, split_parts_max);
        ASSERT_GE(s.columns * s.column_blocks, columns);
        ASSERT_GE(s.row_blocks * split_row_tiles * row_tile, out);
        ASSERT_LE(split_exchange_bytes(segments, s.parts, s.columns), split_exchange_bytes_max);
        ASSERT_EQ(split_first_segment(segments, s.parts, 0), 0u);
        ASSERT_EQ(split_first_segment(segments, s.parts, s.parts), segments);
        for (std::uint32_t rank = 0; rank < s.parts; ++rank) {
          const std::uint32_t length = split_first_segment(segments, s.parts, rank + 1) - split_first_segment(segments, s.parts, rank);
          ASSERT_GE(length, 1u);
          ASSERT_LE(length, split_sums_max);
        }
      }
  EXPECT_EQ(shape(5120, 2880, 32).parts, 3u);   // 40 row blocks: 120 blocks of 3 segments
  EXPECT_EQ(shape(2880, 4096, 128).parts, 4u);  // 23: 92 of 2
  EXPECT_EQ(shape(2560, 2880, 64).parts, 5u);   // 20: 100 of 2
}

void expect_double(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t columns) {
  std::mt19937 random(out + in + columns);
  const Weights w = random_weights(format, out, in, 1, random);
  const auto x = random_input(columns, in, random);
  const auto bias = random_floats(out, random);
  const DeviceArray<std::uint16_t> input(x);
  const DeviceArray<float> device_bias(bias), output(std::size_t{columns} * out);
  ASSERT_EQ(middle_linear(arguments(w, input, {.count = columns}, columns, PlainEpilogue{device_bias.get(), output.get(), out}), nullptr),
            cudaSuccess);
  EXPECT_LT(relative_error(w.matrices[0], x, bias, output.host()), 1e-5)
      << out << " x " << in << ", " << columns << " columns, format " << static_cast<int>(format);
}

TEST(CudaMiddleLinear, is_the_sum_in_double_to_rounding) {
  ALTHING_NEEDS_GPU();
  for (const WeightFormat format : formats)
    for (const auto& [out, in] : {std::pair{720u, 2880u}, {192u, 192u}, {300u, 1440u}, {144u, 4096u}, {64u, 720u}})
      for (const std::uint32_t columns : {11u, 40u, 130u}) expect_double(format, out, in, columns);
}

// Every count of columns gives the columns' bits of the prefill kernel; what stands for no column stays as it was.
template <WeightFormat Format>
void expect_plain_bits(std::uint32_t out, std::uint32_t in) {
  constexpr std::uint32_t tokens = 256;
  std::mt19937 random(3 * out + in);
  const Weights w = random_weights(Format, out, in, 1, random);
  const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
  DeviceArray<float> expected(std::size_t{tokens} * out), few(33 * std::size_t{out}), output(std::size_t{tokens} * out);
  run_tile(arguments(w, input, {.count = tokens}, tokens, PlainEpilogue{nullptr, expected.get(), out}));
  run_stream(arguments(w, input, {.count = 33}, 33, PlainEpilogue{nullptr, few.get(), out}));
  const auto reference = expected.host(), stream = few.host();
  EXPECT_EQ(std::memcmp(reference.data(), stream.data(), stream.size() * 4), 0) << "the kernels beside disagree";
  std::vector<std::int32_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  for (const std::uint32_t columns : column_counts) {
    const DeviceArray<std::int32_t> index(order);
    output.fill(0xFF);
    const Columns chosen{.index = index.get(), .count = columns, .capacity = tokens};
    ASSERT_EQ(middle_linear(arguments(w, input, chosen, columns, PlainEpilogue{nullptr, output.get(), out}), nullptr), cudaSuccess);
    std::vector<float> wanted(reference.size());
    std::memset(wanted.data(), 0xFF, wanted.size() * 4);
    for (std::uint32_t c = 0; c < columns; ++c)
      std::copy_n(reference.begin() + std::size_t(order[c]) * out, out, wanted.begin() + std::size_t(order[c]) * out);
    EXPECT_TRUE(same_bits(output.host(), wanted)) << out << " x " << in << ", format " << static_cast<int>(Format) << ", " << columns << " columns";
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST(CudaMiddleLinear, bits_are_those_of_prefill_and_decode) {
  ALTHING_NEEDS_GPU();
  for (const auto& [out, in] : {std::pair{720u, 2880u}, {384u, 4096u}, {192u, 192u}, {100u, 1440u}, {5000u, 512u}, {2880u, 64u}}) {
    expect_plain_bits<WeightFormat::bf16>(out, in);
    expect_plain_bits<WeightFormat::fp8>(out, in);
    expect_plain_bits<WeightFormat::mxfp4>(out, in);
  }
}

TEST(CudaMiddleLinear, many_runs_on_few_multiprocessors_give_the_same_bits_again) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t out = 40000, in = 192, columns = 100;
  std::mt19937 random(5);
  const Weights w = random_weights(WeightFormat::bf16, out, in, 1, random);
  const DeviceArray<std::uint16_t> input(random_input(columns, in, random));
  DeviceArray<float> expected(std::size_t{columns} * out), output(std::size_t{columns} * out);
  run_tile(arguments(w, input, {.count = columns}, columns, PlainEpilogue{nullptr, expected.get(), out}));
  const auto reference = expected.host();
  for (int i = 0; i < 5; ++i) {
    output.fill(0xFF);
    ASSERT_EQ(middle_linear(arguments(w, input, {.count = columns}, columns, PlainEpilogue{nullptr, output.get(), out}), nullptr), cudaSuccess);
    ASSERT_TRUE(same_bits(output.host(), reference));
  }
}

void expect_expert_bits(WeightFormat format, const std::vector<std::uint32_t>& counts, std::uint32_t intermediate, std::uint32_t in) {
  constexpr std::uint32_t choices = 4;
  std::mt19937 random(intermediate + in + static_cast<std::uint32_t>(counts.size()));
  const auto experts = static_cast<std::uint32_t>(counts.size());
  const Pairs pairs = spread(counts, choices, random);
  const Weights w = random_weights(format, 2 * intermediate, in, experts, random, RowOrder::interleaved);
  const DeviceArray<std::uint16_t> input(random_input(std::max(pairs.tokens, 1u), in, random));
  const DeviceArray<std::uint32_t> device_counts(counts);
  const DeviceArray<std::int32_t> lists(pairs.lists);
  const DeviceArray<float> bias(random_floats(std::size_t{experts} * 2 * intermediate, random));
  const std::size_t all = std::size_t{pairs.tokens} * choices;
  const Columns columns{lists.get(), device_counts.get(), 0, pairs.capacity, choices};
  const std::uint32_t columns_max = *std::max_element(counts.begin(), counts.end());

  const std::uint32_t stride = k_padded(intermediate);
  DeviceArray<std::uint16_t> inner(all * stride), inner_expected(all * stride);
  const auto activated = [&](DeviceArray<std::uint16_t>& to) {
    const SwigluEpilogue epilogue{bias.get(), reinterpret_cast<__nv_bfloat16*>(to.get()), intermediate, stride, 7.0F, 1.702F};
    return arguments(w, input, columns, columns_max, epilogue);
  };
  ASSERT_EQ(middle_linear(activated(inner), nullptr), cudaSuccess);
  run_tile(activated(inner_expected));
  EXPECT_TRUE(same_bits(inner.host(), inner_expected.host())) << "gate and up, " << experts << " experts, format " << static_cast<int>(format);

  DeviceArray<float> output(all * 2 * intermediate), output_expected(all * 2 * intermediate);
  const auto plain = [&](DeviceArray<float>& to) {
    return arguments(w, input, columns, columns_max, PlainEpilogue{bias.get(), to.get(), 2 * intermediate});
  };
  ASSERT_EQ(middle_linear(plain(output), nullptr), cudaSuccess);
  run_tile(plain(output_expected));
  EXPECT_TRUE(same_bits(output.host(), output_expected.host())) << "plain, " << experts << " experts, format " << static_cast<int>(format);
}

TEST(CudaMiddleLinear, experts_take_their_own_columns) {
  ALTHING_NEEDS_GPU();
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::bf16}) {
    expect_expert_bits(format, {0, 1, 15, 16, 17, 63, 64, 65, 200, 0}, 360, 192);
    expect_expert_bits(format, {0, 0, 3}, 96, 576);
    expect_expert_bits(format, {40, 0, 9}, 720, 2880);
    expect_expert_bits(format, {0, 0}, 96, 192);
    std::vector<std::uint32_t> many(128);
    for (std::size_t e = 0; e < many.size(); ++e) many[e] = static_cast<std::uint32_t>(e * 37 % 150);
    expect_expert_bits(format, many, 96, 192);
  }
}

// The residual before and after, by both kernels.
void expect_residual_bits(WeightFormat format, std::uint32_t out, std::uint32_t in, const std::vector<std::uint32_t>& counts, bool biased) {
  std::mt19937 random(out + in);
  const Weights w = random_weights(format, out, in, 1, random);
  const std::uint32_t tokens = *std::max_element(counts.begin(), counts.end());
  const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
  const auto before = random_floats(std::size_t{tokens} * out, random);
  const DeviceArray<float> bias(random_floats(out, random));
  for (const std::uint32_t columns : counts) {
    const DeviceArray<float> residual(before), expected(before);
    const auto to = [&](const DeviceArray<float>& r) {
      return arguments(w, input, {.count = columns}, columns, ResidualEpilogue{biased ? bias.get() : nullptr, r.get(), out});
    };
    ASSERT_EQ(middle_linear(to(residual), nullptr), cudaSuccess);
    run_tile(to(expected));
    EXPECT_TRUE(same_bits(residual.host(), expected.host()))
        << out << " x " << in << ", " << columns << " columns, format " << static_cast<int>(format);
  }
}

TEST(CudaMiddleLinear, residual_has_the_bits_of_prefill_however_the_inputs_are_split) {
  ALTHING_NEEDS_GPU();
  const std::vector<std::uint32_t> all(std::begin(column_counts), std::end(column_counts)), some = {9, 32, 64, 100, 256};
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8}) {
    for (const std::uint32_t in : {64u, 192u, 512u, 720u, 1440u, 2048u, 2880u, 4096u}) expect_residual_bits(format, 200, in, all, in % 128 == 0);
    expect_residual_bits(format, 720, 2880, some, true);
    expect_residual_bits(format, 2880, 512, some, false);
  }
  expect_residual_bits(WeightFormat::bf16, 3200, 2880, {32, 128, 200}, true);
}

void expect_qkv_bits(WeightFormat format, std::uint32_t in, const std::vector<std::uint32_t>& counts) {
  constexpr std::uint32_t head_dim = 64, query_heads = 8, kv_heads = 2, out = (query_heads + 2 * kv_heads) * head_dim;
  constexpr std::uint32_t tokens = 140, page_tokens = 16, pages = 32, table_stride = 8, layer_offset = 512;
  constexpr std::uint32_t page_elements = 2 * kv_heads * page_tokens * head_dim + layer_offset / 2;
  std::mt19937 random(23);
  const Weights w = random_weights(format, out, in, 1, random, RowOrder::halves, head_dim);
  const DeviceArray<std::uint16_t> input(random_input(tokens, in, random));
  const DeviceArray<float> bias(random_floats(out, random)), cosine(random_floats(tokens * head_dim / 2, random));
  const DeviceArray<float> sine(random_floats(tokens * head_dim / 2, random));
  // Three rows of tokens with gaps, and places without a row.
  std::vector<std::int32_t> rows(tokens), positions(tokens), table(3 * table_stride);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  for (std::uint32_t t = 0; t < tokens; ++t)
    rows[t] = t % 13 == 12 ? -1 : static_cast<std::int32_t>(t % 3), positions[t] = static_cast<std::int32_t>(t / 3 + t % 3);
  const DeviceArray<std::int32_t> device_rows(rows), device_positions(positions), device_table(table);
  for (const std::uint32_t columns : counts) {
    DeviceArray<std::uint16_t> queries(tokens * query_heads * head_dim), kv(pages * page_elements);
    DeviceArray<std::uint16_t> queries_expected(queries.size()), kv_expected(kv.size());
    const auto to = [&](DeviceArray<std::uint16_t>& q, DeviceArray<std::uint16_t>& cache) {
      QkvEpilogue e;
      e.bias = bias.get(), e.cosine = cosine.get(), e.sine = sine.get();
      e.queries = reinterpret_cast<__nv_bfloat16*>(q.get());
      e.tokens = {device_rows.get(), device_positions.get(), columns};
      e.kv = {reinterpret_cast<std::byte*>(cache.get()), page_elements * 2, layer_offset, device_table.get(), table_stride, page_tokens, head_dim};
      e.query_heads = query_heads, e.kv_heads = kv_heads, e.head_dim = head_dim;
      return arguments(w, input, {.count = columns}, columns, e);
    };
    ASSERT_EQ(middle_linear(to(queries, kv), nullptr), cudaSuccess);
    run_tile(to(queries_expected, kv_expected));
    EXPECT_TRUE(same_bits(queries.host(), queries_expected.host())) << in << " inputs, " << columns << " columns";
    EXPECT_TRUE(same_bits(kv.host(), kv_expected.host())) << in << " inputs, " << columns << " columns";
  }
}

TEST(CudaMiddleLinear, queries_keys_and_values_have_the_bits_of_prefill) {
  ALTHING_NEEDS_GPU();
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8})
    for (const std::uint32_t in : {192u, 2880u}) expect_qkv_bits(format, in, {9, 32, 61, 128, 140});
}

TEST(CudaMiddleLinear, refuses_what_does_not_fit) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(29);
  const Weights w = random_weights(WeightFormat::bf16, 64, 192, 1, random);
  const DeviceArray<std::uint16_t> input(random_input(4, 192, random));
  const DeviceArray<float> output(std::vector<float>(4 * 64));
  const auto refused = [&](auto args, auto change) {
    change(args);
    return middle_linear(args, nullptr) == cudaErrorInvalidValue;
  };
  const auto plain = arguments(w, input, {.count = 4}, 4, PlainEpilogue{nullptr, output.get(), 64});
  EXPECT_FALSE(refused(plain, [](auto&) {}));
  EXPECT_FALSE(refused(plain, [](auto& a) { a.columns.count = 0; }));
  EXPECT_TRUE(refused(plain, [](auto& a) { a.input_stride = 191; }));
  EXPECT_TRUE(refused(plain, [](auto& a) { a.input_stride = 128; }));
  EXPECT_TRUE(refused(plain, [](auto& a) { a.columns.divisor = 0; }));
  EXPECT_TRUE(refused(plain, [](auto& a) { a.weights.count = tile_experts_max + 1; }));
  EXPECT_TRUE(refused(plain, [](auto& a) { a.weights.data = nullptr; }));
  const auto added = arguments(w, input, {.count = 4}, 4, ResidualEpilogue{nullptr, output.get(), 64});
  EXPECT_FALSE(refused(added, [](auto&) {}));
  EXPECT_FALSE(refused(added, [](auto& a) { a.columns.count = 0; }));
  EXPECT_TRUE(refused(added, [](auto& a) { a.weights.count = 2; }));
  EXPECT_TRUE(refused(added, [](auto& a) { a.weights.format = WeightFormat::mxfp4; }));
  EXPECT_TRUE(refused(added, [](auto& a) { a.weights.in = 64 * 200, a.input_stride = 64 * 200; }));
  must(cudaDeviceSynchronize());
}

// For sanitizers, which are slow: every epilogue, whole and split, and the prefill kernel beside it.
TEST(CudaSmall, middle_linear) {
  ALTHING_NEEDS_GPU();
  expect_double(WeightFormat::bf16, 33, 192, 11);
  expect_expert_bits(WeightFormat::mxfp4, {0, 3, 17}, 32, 192);
  expect_residual_bits(WeightFormat::bf16, 33, 2880, {9}, true);
  expect_residual_bits(WeightFormat::fp8, 33, 192, {33}, false);
  expect_qkv_bits(WeightFormat::bf16, 192, {9});
}

}  // namespace
}  // namespace althing::tests
