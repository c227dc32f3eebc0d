// Linear layers, SwiGLU and the exponential against double precision, and the promise that tiles, batches and blocks never change a bit.
#include "gpu/cpu/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/cpu/elementwise.hpp"

namespace althing::gpu::cpu {
namespace {

struct Storage {
  std::vector<std::byte> data, scales;
  Matrix matrix;
};

// Values with an exactly known meaning, stored one byte off alignment.
Storage random_matrix(MatrixFormat format, std::uint32_t out, std::uint32_t in, bool transposed, std::uint32_t seed) {
  std::mt19937 random(seed);
  Storage s;
  s.matrix = {format, nullptr, nullptr, out, in, in, 1};
  if (format == MatrixFormat::mxfp4) {
    s.data.resize(std::size_t{out} * in / 2 + 1);
    s.scales.resize(std::size_t{out} * in / 32);
    for (auto& byte : s.data) byte = static_cast<std::byte>(random() & 0xff);
    for (auto& byte : s.scales) byte = static_cast<std::byte>(118 + random() % 12);
    s.matrix.row_stride = in / 32;
    s.matrix.scales = s.scales.data();
  } else {
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const std::size_t size = format == MatrixFormat::bf16 ? 2 : 4;
    s.data.resize(std::size_t{out} * in * size + 1);
    for (std::size_t i = 0; i < std::size_t{out} * in; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(normal(random));
      const std::uint16_t high = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(s.data.data() + 1 + i * size, size == 2 ? static_cast<const void*>(&high) : &bits, size);
    }
    if (transposed) s.matrix.row_stride = 1, s.matrix.column_stride = out;
  }
  s.matrix.data = s.data.data() + 1;
  return s;
}

// The value of one element, straight from the format's definition.
double element(const Matrix& m, std::uint32_t o, std::uint32_t k) {
  if (m.format != MatrixFormat::mxfp4)
    return Vector{m.format == MatrixFormat::bf16 ? DType::bf16 : DType::f32, m.data, 0}.at(o * m.row_stride + k * m.column_stride);
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  const std::uint64_t group = o * m.row_stride + k / 32;
  const auto byte = static_cast<std::uint32_t>(m.data[group * 16 + k % 32 / 2]);
  const std::uint32_t code = k % 2 == 0 ? byte & 15 : byte >> 4;
  return std::ldexp(code & 8 ? -values[code & 7] : values[code & 7], static_cast<int>(m.scales[group]) - 127);
}

std::vector<std::vector<float>> random_inputs(std::size_t tokens, std::size_t in, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<std::vector<float>> rows(tokens, std::vector<float>(padded(in)));
  for (auto& row : rows)
    for (std::size_t k = 0; k < in; ++k) row[k] = normal(random);
  return rows;
}

std::vector<std::vector<float>> multiply(const Matrix& m, const Vector& bias, const std::vector<std::vector<float>>& inputs) {
  std::vector<std::vector<float>> outputs(inputs.size(), std::vector<float>(m.out));
  std::vector<const float*> in;
  std::vector<float*> out;
  for (std::size_t t = 0; t < inputs.size(); ++t) in.push_back(inputs[t].data()), out.push_back(outputs[t].data());
  std::vector<float> scratch(expansion_floats(m.in) + inputs.size() * row_block);
  for (std::uint32_t block = 0; block < row_blocks(m.out); ++block)
    linear_block({m, bias, in.data(), out.data(), inputs.size()}, block, scratch.data());
  return outputs;
}

struct Case {
  MatrixFormat format;
  std::uint32_t out, in;
  bool transposed;
};

TEST(Linear, agrees_with_double_precision_in_every_format_and_ragged_size) {
  const Case cases[] = {{MatrixFormat::mxfp4, 33, 288, false}, {MatrixFormat::mxfp4, 8, 32, false}, {MatrixFormat::mxfp4, 5, 2880, false},
                        {MatrixFormat::bf16, 17, 129, false},  {MatrixFormat::bf16, 9, 7, false},   {MatrixFormat::bf16, 12, 100, true},
                        {MatrixFormat::f32, 16, 255, false},   {MatrixFormat::f32, 3, 130, true}};
  std::uint32_t seed = 1;
  for (const Case& c : cases) {
    const Storage s = random_matrix(c.format, c.out, c.in, c.transposed, ++seed);
    std::vector<float> added(c.out, 0.25F);
    const Vector bias{DType::f32, reinterpret_cast<const std::byte*>(added.data()), c.out};
    const auto inputs = random_inputs(5, c.in, ++seed);
    const auto outputs = multiply(s.matrix, bias, inputs);
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      for (std::uint32_t o = 0; o < c.out; ++o) {
        double sum = 0.25, magnitude = 1;
        for (std::uint32_t k = 0; k < c.in; ++k) {
          sum += element(s.matrix, o, k) * double{inputs[t][k]};
          magnitude += std::abs(element(s.matrix, o, k) * double{inputs[t][k]});
        }
        ASSERT_NEAR(outputs[t][o], sum, 1e-6 * magnitude) << name_of(DType::f32) << " out " << o << " in " << c.in << " token " << t;
      }
    }
  }
}

TEST(Linear, expansion_is_exact) {
  Storage s = random_matrix(MatrixFormat::mxfp4, 8, 64, false, 3);
  s.scales[0] = std::byte{0}, s.scales[1] = std::byte{1}, s.scales[2] = std::byte{2}, s.scales[3] = std::byte{252};
  std::vector<float> expanded(8 * 64);
  expand_rows(s.matrix, 0, 8, expanded.data());
  for (std::uint32_t o = 0; o < 8; ++o)
    for (std::uint32_t k = 0; k < 64; ++k) ASSERT_EQ(static_cast<double>(expanded[o * 64 + k]), element(s.matrix, o, k)) << o << " " << k;
  s.scales[0] = std::byte{255};  // the format's NaN must not become a number
  expand_rows(s.matrix, 0, 8, expanded.data());
  EXPECT_TRUE(std::isnan(expanded[1]));
}

TEST(Linear, a_row_has_the_same_bits_alone_and_in_any_batch) {
  const Storage s = random_matrix(MatrixFormat::mxfp4, 40, 288, false, 9);
  const auto inputs = random_inputs(13, 288, 10);
  const auto together = multiply(s.matrix, {}, inputs);
  for (std::size_t t = 0; t < inputs.size(); ++t) ASSERT_EQ(multiply(s.matrix, {}, {inputs[t]})[0], together[t]) << "token " << t;
  const std::vector<std::vector<float>> some(inputs.begin() + 3, inputs.begin() + 10);
  EXPECT_EQ(multiply(s.matrix, {}, some)[4], together[7]);
}

TEST(Linear, the_order_of_additions_is_the_documented_one) {
  const Storage s = random_matrix(MatrixFormat::f32, 1, 300, false, 21);
  const auto inputs = random_inputs(1, 300, 22);
  float total[8] = {};
  for (std::uint32_t segment = 0; segment < 300; segment += 128) {
    float chain[8] = {};
    for (std::uint32_t k = segment; k < std::min(segment + 128, 300u); ++k)
      chain[k % 8] = std::fma(static_cast<float>(element(s.matrix, 0, k)), inputs[0][k], chain[k % 8]);
    for (int lane = 0; lane < 8; ++lane) total[lane] += chain[lane];
  }
  const float sum = ((total[0] + total[4]) + (total[2] + total[6])) + ((total[1] + total[5]) + (total[3] + total[7]));
  EXPECT_EQ(multiply(s.matrix, {}, inputs)[0][0], sum);
}

TEST(Elementwise, exponential_and_swiglu_agree_with_double_precision) {
  for (float x = -86.5F; x < 87.9F; x += 0.0137F) {
    const double expected = std::exp(double{x});
    ASSERT_NEAR(exp_f32(x), expected, 3e-7 * expected) << x;
  }
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-200.0F), 0.0F);
  EXPECT_EQ(exp_f32(-INFINITY), 0.0F);
  EXPECT_TRUE(std::isnan(exp_f32(NAN)));
  for (const float gate : {-300.0F, -9.0F, -1.0F, 0.0F, 0.5F, 6.9F, 7.0F, 50.0F})
    for (const float up : {-50.0F, -7.0F, -1.0F, 0.0F, 3.0F, 9.0F}) {
      const double g = std::min(double{gate}, 7.0), u = std::clamp(double{up}, -7.0, 7.0);
      const double expected = g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
      ASSERT_NEAR(swiglu(gate, up, 7.0F, 1.702F), expected, 1e-6 * std::abs(expected) + 1e-30) << gate << " " << up;
    }
  EXPECT_TRUE(std::isnan(swiglu(NAN, 1.0F, 7.0F, 1.702F)));
  EXPECT_TRUE(std::isnan(swiglu(1.0F, NAN, 7.0F, 1.702F)));
}

TEST(Elementwise, norm_agrees_with_double_precision) {
  for (const std::size_t size : {std::size_t{3}, std::size_t{288}, std::size_t{2880}}) {
    const auto x = random_inputs(2, size, 5);
    std::vector<float> normed(size);
    rms_norm(x[0].data(), x[1].data(), 1e-5F, size, normed.data());
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += double{x[0][i]} * double{x[0][i]};
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < size; ++i) ASSERT_NEAR(normed[i], double{x[0][i]} * inverse * double{x[1][i]}, 2e-6) << i;
  }
}

}  // namespace
}  // namespace althing::gpu::cpu
