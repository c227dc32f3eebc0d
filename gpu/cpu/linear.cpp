// See the header for the order of additions. Tiles differ in how many rows and tokens share registers, never in that order.
#include "gpu/cpu/linear.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

namespace althing::gpu::cpu {
namespace {

constexpr std::array<float, 256> half_scales() {
  // 2^(scale-127) / 2: the table of codes below holds doubled values. 255 is the format's NaN.
  std::array<float, 256> table{};
  table[0] = std::bit_cast<float>(0x0020'0000u);  // 2^-128 and 2^-127 are subnormal
  table[1] = std::bit_cast<float>(0x0040'0000u);
  for (std::uint32_t s = 2; s < 255; ++s) table[s] = std::bit_cast<float>((s - 1) << 23);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}
constexpr std::array<float, 256> mxfp4_half_scales = half_scales();

void expand_mxfp4_row(const Matrix& m, std::uint64_t row, float* out) {
  const __m128i codes = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);  // twice the E2M1 values
  const __m128i low_nibble = _mm_set1_epi8(0x0f);
  const auto* blocks = m.data + row * m.row_stride * 16;
  const auto* scales = m.scales + row * m.row_stride;
  for (std::uint32_t g = 0; g < m.in / mxfp4_group; ++g, out += mxfp4_group) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + std::size_t{g} * 16));
    const __m128i low = _mm_shuffle_epi8(codes, _mm_and_si128(bytes, low_nibble));
    const __m128i high = _mm_shuffle_epi8(codes, _mm_and_si128(_mm_srli_epi16(bytes, 4), low_nibble));
    const __m128i halves[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
    const __m256 scale = _mm256_set1_ps(mxfp4_half_scales[static_cast<std::uint8_t>(scales[g])]);
    for (int h = 0; h < 2; ++h) {
      const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(halves[h]));
      const __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(halves[h], 8)));
      _mm256_storeu_ps(out + h * 16, _mm256_mul_ps(first, scale));
      _mm256_storeu_ps(out + h * 16 + 8, _mm256_mul_ps(second, scale));
    }
  }
}

void expand_bf16_row(const std::byte* row, std::size_t size, float* out) {
  std::size_t k = 0;
  for (; k + 8 <= size; k += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + k * 2));
    _mm256_storeu_ps(out + k, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  const Vector tail{DType::bf16, row, static_cast<std::uint32_t>(size)};
  for (; k < size; ++k) out[k] = tail.at(k);
}

// Any strides: experts stored (in, out). Reads along `out`, which is where such a tensor is contiguous.
void expand_strided(const Matrix& m, std::uint32_t row, std::uint32_t rows, std::size_t pad, float* expanded) {
  const DType type = m.format == MatrixFormat::bf16 ? DType::bf16 : DType::f32;
  const Vector all{type, m.data, 0};
  for (std::size_t k = 0; k < m.in; ++k)
    for (std::uint32_t r = 0; r < rows; ++r) expanded[r * pad + k] = all.at((row + r) * m.row_stride + k * m.column_stride);
}

float sum_lanes(__m256 lanes) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));  // 0+4 1+5 2+6 3+7
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));                                  // (0+4)+(2+6) (1+5)+(3+7)
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// R rows times T tokens. R * T chains are in flight at once, which is what hides the latency of the fused multiply-add.
template <int R, int T>
void multiply_tile(const float* expanded, std::size_t pad, const float* const* inputs, float* sums) {
  __m256 total[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) total[r][t] = _mm256_setzero_ps();
  for (std::size_t segment = 0; segment < pad; segment += k_segment) {
    __m256 chain[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) chain[r][t] = _mm256_setzero_ps();
    const std::size_t end = std::min(segment + k_segment, pad);
    for (std::size_t k = segment; k < end; k += k_lanes) {
      __m256 x[T];
      for (int t = 0; t < T; ++t) x[t] = _mm256_loadu_ps(inputs[t] + k);
      for (int r = 0; r < R; ++r) {
        const __m256 w = _mm256_loadu_ps(expanded + static_cast<std::size_t>(r) * pad + k);
        for (int t = 0; t < T; ++t) chain[r][t] = _mm256_fmadd_ps(w, x[t], chain[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) total[r][t] = _mm256_add_ps(total[r][t], chain[r][t]);
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[static_cast<std::size_t>(t) * row_block + static_cast<std::size_t>(r)] = sum_lanes(total[r][t]);
}

}  // namespace

void expand_rows(const Matrix& m, std::uint32_t row, std::uint32_t rows, float* expanded) {
  const std::size_t pad = padded(m.in);
  if (pad != m.in || rows != row_block) std::fill_n(expanded, row_block * pad, 0.0F);
  if (m.format != MatrixFormat::mxfp4 && m.column_stride != 1) return expand_strided(m, row, rows, pad, expanded);
  for (std::uint32_t r = 0; r < rows; ++r) {
    float* out = expanded + r * pad;
    const std::uint64_t index = row + r;
    switch (m.format) {
      case MatrixFormat::mxfp4:
        expand_mxfp4_row(m, index, out);
        break;
      case MatrixFormat::bf16:
        expand_bf16_row(m.data + index * m.row_stride * 2, m.in, out);
        break;
      case MatrixFormat::f32:
        std::memcpy(out, m.data + index * m.row_stride * 4, std::size_t{m.in} * 4);
        break;
    }
  }
}

void multiply_block(const float* expanded, std::size_t in, const float* const* inputs, std::size_t tokens, float* sums) {
  const std::size_t pad = padded(in);
  std::size_t t = 0;
  for (; t + 2 <= tokens; t += 2) {
    multiply_tile<4, 2>(expanded, pad, inputs + t, sums + t * row_block);
    multiply_tile<4, 2>(expanded + 4 * pad, pad, inputs + t, sums + t * row_block + 4);
  }
  if (t < tokens) multiply_tile<8, 1>(expanded, pad, inputs + t, sums + t * row_block);
}

void linear_block(const LinearArgs& args, std::uint32_t block, float* scratch) {
  const std::uint32_t row = block * row_block;
  const std::uint32_t rows = std::min(row_block, args.matrix.out - row);
  float* sums = scratch + expansion_floats(args.matrix.in);
  expand_rows(args.matrix, row, rows, scratch);
  multiply_block(scratch, args.matrix.in, args.inputs, args.tokens, sums);
  float bias[row_block] = {};
  for (std::uint32_t r = 0; r < rows && !args.bias.empty(); ++r) bias[r] = args.bias.at(row + r);
  for (std::size_t t = 0; t < args.tokens; ++t)
    for (std::uint32_t r = 0; r < rows; ++r) args.outputs[t][row + r] = sums[t * row_block + r] + bias[r];
}

}  // namespace althing::gpu::cpu
