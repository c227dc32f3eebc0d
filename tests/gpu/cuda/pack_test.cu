// Packing on the device: every element of the target, padding included, is the source's element in its place, for all formats, orders and layouts.
#include "gpu/cuda/pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/cuda/unpack_element.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;
using gpu::Matrix;
using gpu::MatrixFormat;

struct Case {
  std::uint32_t out, in;
  RowOrder order = RowOrder::natural;
  std::uint32_t block = 0;
  std::uint32_t count = 1;
  bool transposed = false;
};

std::ostream& operator<<(std::ostream& to, const Case& c) {
  return to << c.out << " x " << c.in << ", order " << static_cast<int>(c.order) << ", " << c.count << " matrices"
            << (c.transposed ? ", transposed" : "");
}

const Case cases[] = {{2880, 1440},
                      {1440, 720},
                      {720, 2880, RowOrder::interleaved},
                      {192, 192, RowOrder::halves, 64},
                      {320, 192, RowOrder::halves, 64, 2},
                      {100, 192, RowOrder::natural, 0, 3},
                      {360, 96, RowOrder::interleaved, 0, 3},
                      {48, 224, RowOrder::halves, 16},
                      {33, 32}};

// Checkpoint matrices one after the other on the device, and what each element means.
struct Source {
  std::vector<std::byte> data, scales;
  std::vector<float> values;  // (count, out, in)
  Matrix matrix;              // host addresses
  std::uint64_t stride = 0;
};

Source plain_source(const Case& c, MatrixFormat format, std::mt19937& random) {
  Source s;
  const std::size_t elements = std::size_t{c.out} * c.in, size = format == MatrixFormat::f32 ? 4 : 2;
  s.data.resize(elements * c.count * size);
  s.values.resize(elements * c.count);
  s.stride = elements;
  s.matrix = {format, nullptr, nullptr, c.out, c.in, c.transposed ? 1u : c.in, c.transposed ? c.out : 1u};
  for (std::uint32_t e = 0; e < c.count; ++e)
    for (std::uint32_t r = 0; r < c.out; ++r)
      for (std::uint32_t k = 0; k < c.in; ++k) {
        const std::uint16_t bits = bf16_bits(std::normal_distribution<float>(0.0F, 0.05F)(random));
        const float value = bf16_value(bits);
        s.values[e * elements + std::size_t{r} * c.in + k] = value;
        std::byte* to = s.data.data() + (e * elements + r * s.matrix.row_stride + k * s.matrix.column_stride) * size;
        std::memcpy(to, size == 4 ? static_cast<const void*>(&value) : &bits, size);
      }
  return s;
}

Source mxfp4_source(const Case& c, std::mt19937& random, std::uint32_t scale_min, std::uint32_t scale_max) {
  Source s;
  const std::uint32_t groups = c.in / 32;
  s.stride = std::uint64_t{c.out} * groups;
  s.data.resize(s.stride * c.count * 16);
  s.scales.resize(s.stride * c.count);
  s.values.resize(std::size_t{c.out} * c.in * c.count);
  s.matrix = {MatrixFormat::mxfp4, nullptr, nullptr, c.out, c.in, groups, 1};
  for (auto& byte : s.data) byte = static_cast<std::byte>(random() & 255);
  for (auto& scale : s.scales) scale = static_cast<std::byte>(scale_min + random() % (scale_max - scale_min + 1));
  for (std::size_t i = 0; i < s.values.size(); ++i) {
    const auto byte = static_cast<std::uint32_t>(s.data[i / 2]);
    s.values[i] = std::ldexp(e2m1[i % 2 == 0 ? byte & 15 : byte >> 4], static_cast<int>(s.scales[i / 32]) - 127);
  }
  return s;
}

struct Packed {
  cudaError_t error;
  std::vector<std::byte> bytes;
  PackReport report;
};

Packed pack(const Source& s, const Case& c, WeightFormat format) {
  DeviceArray<std::byte> data(s.data), scales(s.scales);
  const PackedMatrix target{format, nullptr, c.out, c.in, c.count};
  DeviceArray<std::byte> tiles(target.bytes());
  DeviceArray<PackReport> report(1);
  report.fill(0);
  PackArgs args{s.matrix, s.stride, target, tiles.get(), 0, c.order, c.block, report.get()};
  args.source.data = data.get();
  args.source.scales = s.scales.empty() ? nullptr : scales.get();
  const cudaError_t error = pack_weights(args, nullptr);
  return {error, tiles.host(), report.host()[0]};
}

// `expected(expert, row, k)` of source rows.
template <class Expected>
void expect_elements(const Packed& packed, const Case& c, WeightFormat format, const Expected& expected) {
  ASSERT_EQ(packed.error, cudaSuccess) << c;
  const PackedMatrix shape{format, nullptr, c.out, c.in, c.count};
  for (std::uint32_t e = 0; e < c.count; ++e)
    for (std::uint32_t row = 0; row < shape.row_tiles() * row_tile; ++row)
      for (std::uint32_t k = 0; k < k_padded(c.in); ++k) {
        const std::uint32_t source = source_row(c.order, c.block, row);
        const float value = source < c.out && k < c.in ? expected(e, source, k) : 0.0F;
        const float got = unpack_element(packed.bytes.data() + e * shape.matrix_bytes(), shape, row, k);
        ASSERT_EQ(got, value) << c << ": matrix " << e << " packed row " << row << " k " << k;
      }
}

TEST(CudaPack, bf16_keeps_every_element) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(1);
  for (Case c : cases)
    for (const bool transposed : {false, true})
      for (const MatrixFormat format : {MatrixFormat::bf16, MatrixFormat::f32}) {
        c.transposed = transposed;
        const Source s = plain_source(c, format, random);
        const Packed packed = pack(s, c, WeightFormat::bf16);
        expect_elements(packed, c, WeightFormat::bf16,
                        [&](std::uint32_t e, std::uint32_t r, std::uint32_t k) { return s.values[(std::size_t{e} * c.out + r) * c.in + k]; });
        EXPECT_EQ(packed.report.rounded, 0u);
      }
}

TEST(CudaPack, mxfp4_keeps_every_element) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(2);
  for (const Case& c : cases) {
    // in / 32 groups a row
    if (c.in % 32 != 0) continue;
    const Source s = mxfp4_source(c, random, 0, 128);
    const Packed packed = pack(s, c, WeightFormat::mxfp4);
    expect_elements(packed, c, WeightFormat::mxfp4,
                    [&](std::uint32_t e, std::uint32_t r, std::uint32_t k) { return s.values[(std::size_t{e} * c.out + r) * c.in + k]; });
    EXPECT_EQ(packed.report.large_scale, 0u);
  }
}

// The host's own packing knows the same layout from the other side: bytes must be equal, padding included.
TEST(CudaPack, bf16_tiles_are_those_of_the_host) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(3);
  for (const Case& c : cases) {
    if (c.count != 1) continue;
    const HostMatrix m = random_matrix(WeightFormat::bf16, c.order, c.block, c.out, c.in, random);
    Source s;
    s.data.resize(m.values.size() * 4);
    std::memcpy(s.data.data(), m.values.data(), s.data.size());
    s.matrix = {MatrixFormat::f32, nullptr, nullptr, c.out, c.in, c.in, 1};
    const Packed packed = pack(s, c, WeightFormat::bf16);
    EXPECT_EQ(packed.error, cudaSuccess);
    EXPECT_TRUE(packed.bytes == m.tiles) << c;
  }
}

TEST(CudaPack, f32_that_bf16_does_not_hold_is_rounded_and_counted) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(4);
  const Case c{64, 192};
  Source s = plain_source(c, MatrixFormat::f32, random);
  const float odd[] = {1.0F + 1.0F / 256, 1.0F + 3.0F / 256, 0.1F};
  for (std::size_t i = 0; i < 3; ++i) {
    std::memcpy(s.data.data() + 4 * (1000 * i + 17), &odd[i], 4);
    s.values[1000 * i + 17] = bf16_value(bf16_bits(odd[i]));
  }
  const Packed packed = pack(s, c, WeightFormat::bf16);
  expect_elements(packed, c, WeightFormat::bf16,
                  [&](std::uint32_t, std::uint32_t r, std::uint32_t k) { return s.values[std::size_t{r} * c.in + k]; });
  EXPECT_EQ(packed.report.rounded, 3u);
}

TEST(CudaPack, scales_without_a_bf16_factor_are_counted) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(5);
  const Case c{100, 96};
  Source s = mxfp4_source(c, random, 100, 128);
  s.scales[5] = std::byte{129};
  s.scales[299] = std::byte{255};
  const Packed packed = pack(s, c, WeightFormat::mxfp4);
  EXPECT_EQ(packed.error, cudaSuccess);
  EXPECT_EQ(packed.report.large_scale, 2u);
}

// To the nearest E4M3 value, ties to even; finite and at most 448.
double nearest_e4m3(double x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(x / step) * step;
}

void expect_fp8(const Source& s, const Case& c) {
  const Packed packed = pack(s, c, WeightFormat::fp8);
  const std::uint32_t blocks = ceil_div(c.in, 128), block_rows = ceil_div(c.out, 128);
  std::vector<int> scales(std::size_t{c.count} * block_rows * blocks);
  const auto value = [&](std::uint32_t e, std::uint32_t r, std::uint32_t k) { return s.values[(std::size_t{e} * c.out + r) * c.in + k]; };
  for (std::uint32_t e = 0; e < c.count; ++e)
    for (std::uint32_t i = 0; i < block_rows; ++i)
      for (std::uint32_t j = 0; j < blocks; ++j) {
        double largest = 0;
        for (std::uint32_t r = i * 128; r < std::min(c.out, i * 128 + 128); ++r)
          for (std::uint32_t k = j * 128; k < std::min(c.in, j * 128 + 128); ++k) largest = std::max(largest, std::fabs(double{value(e, r, k)}));
        int scale = 120;
        while (std::ldexp(largest, scale) > 448) --scale;
        scales[(std::size_t{e} * block_rows + i) * blocks + j] = scale;
      }
  expect_elements(packed, c, WeightFormat::fp8, [&](std::uint32_t e, std::uint32_t r, std::uint32_t k) {
    const int scale = scales[(std::size_t{e} * block_rows + r / 128) * blocks + k / 128];
    return static_cast<float>(std::ldexp(nearest_e4m3(std::ldexp(double{value(e, r, k)}, scale)), -scale));
  });
  EXPECT_EQ(packed.report.unfit, 0u);
}

TEST(CudaPack, fp8_rounds_to_nearest_under_the_largest_power_of_two) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(6);
  for (Case c : cases)
    for (const bool transposed : {false, true}) {
      c.transposed = transposed;
      expect_fp8(plain_source(c, MatrixFormat::bf16, random), c);
    }
}

TEST(CudaPack, fp8_blocks_of_zeros_extremes_and_the_edge_448) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(7);
  const Case c{256, 256};
  Source s = plain_source(c, MatrixFormat::bf16, random);
  const auto set = [&](std::size_t index, float value) {
    const std::uint16_t bits = bf16_bits(value);
    std::memcpy(s.data.data() + 2 * index, &bits, 2);
    s.values[index] = bf16_value(bits);
  };
  for (std::uint32_t r = 0; r < 128; ++r)
    for (std::uint32_t k = 0; k < 128; ++k) set(std::size_t{r} * 256 + k, 0.0F);  // nothing
  for (std::uint32_t r = 128; r < 256; ++r)
    for (std::uint32_t k = 0; k < 128; ++k) set(std::size_t{r} * 256 + k, r + k == 128 ? 57344.0F : 0.75F);  // 448 * 2^7
  set(5 * 256 + 200, 448.0F);                                                                                // just fits without a scale
  set(200 * 256 + 200, 450.0F);                                                                              // just does not
  expect_fp8(s, c);
}

TEST(CudaPack, values_that_fp8_cannot_hold_are_counted_by_block) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(8);
  const Case c{256, 256};
  Source s = plain_source(c, MatrixFormat::bf16, random);
  const std::uint16_t infinity = 0x7F80, nan = 0x7FC0, large = bf16_bits(60000.0F);
  std::memcpy(s.data.data(), &infinity, 2);
  std::memcpy(s.data.data() + 2 * 130, &nan, 2);
  std::memcpy(s.data.data() + 2 * (200 * 256 + 3), &large, 2);
  EXPECT_EQ(pack(s, c, WeightFormat::fp8).report.unfit, 3u);
}

// q, k and v are three tensors and one packed matrix.
TEST(CudaPack, several_sources_fill_one_matrix) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(9);
  const std::uint32_t parts[] = {256, 64, 64}, in = 192;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8}) {
    const PackedMatrix target{format, nullptr, 384, in, 1};
    DeviceArray<std::byte> tiles(target.bytes());
    DeviceArray<PackReport> report(1);
    report.fill(0);
    std::vector<std::byte> alone;
    std::uint32_t row = 0;
    for (const std::uint32_t rows : parts) {
      const Case c{rows, in, RowOrder::halves, 64};
      const Source s = plain_source(c, MatrixFormat::bf16, random);
      const Packed part = pack(s, c, format);
      alone.insert(alone.end(), part.bytes.begin(), part.bytes.end());
      DeviceArray<std::byte> data(s.data);
      PackArgs args{s.matrix, 0, target, tiles.get(), row, c.order, c.block, report.get()};
      args.source.data = data.get();
      ASSERT_EQ(pack_weights(args, nullptr), cudaSuccess);
      must(cudaDeviceSynchronize());
      row += rows;
    }
    EXPECT_TRUE(tiles.host() == alone);
  }
}

TEST(CudaPack, refuses_what_does_not_fit) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(10);
  const Case good{128, 192};
  const Source s = plain_source(good, MatrixFormat::bf16, random);
  DeviceArray<std::byte> data(s.data), tiles(1 << 20);
  DeviceArray<PackReport> report(1);
  const auto refused = [&](auto change) {
    PackArgs args{s.matrix, s.stride, {WeightFormat::bf16, nullptr, 128, 192, 1}, tiles.get(), 0, RowOrder::natural, 0, report.get()};
    args.source.data = data.get();
    change(args);
    return pack_weights(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](PackArgs&) {}));
  EXPECT_TRUE(refused([](PackArgs& a) { a.first_row = 8; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.first_row = 16; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.source.out = 100; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.source.in = 191; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.target.format = WeightFormat::mxfp4; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.source.format = MatrixFormat::mxfp4; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.order = RowOrder::halves, a.order_block = 80; }));
  EXPECT_TRUE(refused([](PackArgs& a) { a.report = nullptr; }));
  must(cudaDeviceSynchronize());
}

// For sanitizers, which are slow: every format once, with padding in rows and columns.
TEST(CudaSmall, pack) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(11);
  const Case c{33, 96, RowOrder::natural, 0, 2};
  const auto element = [&](const Source& s) {
    return [&](std::uint32_t e, std::uint32_t r, std::uint32_t k) { return s.values[(std::size_t{e} * c.out + r) * c.in + k]; };
  };
  const Source plain = plain_source(c, MatrixFormat::f32, random), codes = mxfp4_source(c, random, 0, 128);
  expect_elements(pack(plain, c, WeightFormat::bf16), c, WeightFormat::bf16, element(plain));
  expect_elements(pack(codes, c, WeightFormat::mxfp4), c, WeightFormat::mxfp4, element(codes));
  expect_fp8(plain, c);
}

}  // namespace
}  // namespace althing::tests
