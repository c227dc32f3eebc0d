// The numerics class of attention, and how keys and values come to shared memory: everything that must be the same in prefill and decode. A query row
// meets one segment of kv_segment positions at a time; what it does not see has score -infinity and weight exactly 0.
//   score     chain of 4 k16 tensor-core steps over head_dim from zero, fp32, not scaled
//   m         largest score times score_scale (a score in units of log2)
//   p         exp2(score * score_scale - m), one rounding before exp2; fp32 for the sum, bf16 for the values
//   d         each lane of a quad adds its columns 8n + 2q, 8n + 2q + 1 by ascending n inside a quarter of 32 positions, then quarters in order;
//             then the quad, xor 1, xor 2
//   o         chain of 8 k16 steps over the positions from zero
// Segments are merged in ascending order by merge_state and merged(); one of which the row sees nothing (m = -infinity) changes no bit.
// Rows are those of an m16n8 accumulator: c[0], c[1] belong to row g ("half" 0), c[2], c[3] to row g + 8 ("half" 1), lane = 4 g + q.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gpu/cuda/attention.hpp"
#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/intrinsics.cuh"

namespace althing::gpu::cuda {

inline constexpr float score_scale = 0.125F * log2_e;  // 1 / sqrt(head_dim)
inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
inline constexpr std::uint32_t kv_row_bytes = attention_head_dim * 2;
inline constexpr std::uint32_t staged_values = kv_segment * kv_row_bytes;  // where the values of a staged segment begin
inline constexpr std::uint32_t staged_bytes = 2 * staged_values;

// Positions [first, end).
struct Visible {
  std::uint32_t first;
  std::uint32_t end;
};

__device__ __forceinline__ Visible visible_from(std::uint32_t position, std::uint32_t window) {
  return {window == 0 || position < window ? 0 : position - window + 1, position + 1};
}

// Columns of s that `visible` leaves out get -infinity. base: the position of column 0.
template <int N>
__device__ __forceinline__ void mask_scores(float (&s)[N][4], int half, std::uint32_t base, Visible visible) {
  const std::uint32_t own = base + threadIdx.x % 4 * 2 - visible.first, seen = visible.end - visible.first;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (own + 8 * n + e >= seen) s[n][2 * half + e] = minus_infinity;
}

// The largest of the lane's own columns.
template <int N>
__device__ __forceinline__ float lane_maximum(const float (&s)[N][4], int half) {
  float maximum = minus_infinity;
#pragma unroll
  for (int n = 0; n < N; ++n) maximum = fmaxf(maximum, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
  return maximum;
}
__device__ __forceinline__ float quad_maximum(float lane) {
  lane = fmaxf(lane, __shfl_xor_sync(0xFFFFFFFFu, lane, 1));
  return fmaxf(lane, __shfl_xor_sync(0xFFFFFFFFu, lane, 2));
}
__device__ __forceinline__ float quad_sum(float lane) {
  lane = __fadd_rn(lane, __shfl_xor_sync(0xFFFFFFFFu, lane, 1));
  return __fadd_rn(lane, __shfl_xor_sync(0xFFFFFFFFu, lane, 2));
}
// m of a segment.
__device__ __forceinline__ float scaled_maximum(float score) { return __fmul_rn(score, score_scale); }

// Scores to weights, in place; returns the lane's share of d. s holds whole quarters.
template <int N>
__device__ __forceinline__ float weigh(float (&s)[N][4], int half, float m) {
  static_assert(N % 4 == 0);
  const float shift = m == minus_infinity ? 0.0F : -m;
  float d = 0.0F;
#pragma unroll
  for (int quarter = 0; quarter < N / 4; ++quarter) {
    float sum = 0.0F;
#pragma unroll
    for (int n = 4 * quarter; n < 4 * quarter + 4; ++n)
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; ++c) {
        s[n][c] = exp2_fast(__fmaf_rn(s[n][c], score_scale, shift));
        sum = __fadd_rn(sum, s[n][c]);
      }
    d = quarter == 0 ? sum : __fadd_rn(d, sum);
  }
  return d;
}

// What a row has gathered so far, o apart.
struct RowState {
  float m = minus_infinity;
  float d = 0.0F;
};
// Factors of a merge.
struct MergeFactors {
  float keep;  // of what is there
  float add;   // of the segment
};

// before: the largest m of all earlier segments. A segment that is not seen gets -0, so that adding its zeros leaves even a negative zero as it was.
__device__ __forceinline__ MergeFactors merge_factors(float before, float m) {
  const float both = fmaxf(before, m);
  const float base = both == minus_infinity ? 0.0F : both;
  return {exp2_fast(before - base), m == minus_infinity ? -0.0F : exp2_fast(m - base)};
}
__device__ __forceinline__ float merged(float total, float segment, MergeFactors f) { return __fmaf_rn(segment, f.add, __fmul_rn(total, f.keep)); }

__device__ __forceinline__ MergeFactors merge_state(RowState& total, RowState segment) {
  const MergeFactors f = merge_factors(total.m, segment.m);
  total.d = merged(total.d, segment.d, f);
  total.m = fmaxf(total.m, segment.m);
  return f;
}

// What o is multiplied with at the end, the sink in it. sink: of the head, or nullptr.
__device__ __forceinline__ float output_factor(RowState total, const float* sink) {
  if (sink == nullptr) return __fdiv_rn(1.0F, total.d);
  const float weight = __fmul_rn(*sink, log2_e);
  const float both = fmaxf(total.m, weight);
  const float keep = exp2_fast(total.m - both);
  return __fdiv_rn(keep, __fmaf_rn(total.d, keep, exp2_fast(weight - both)));
}
__device__ __forceinline__ std::uint32_t output_pair(float low, float high, float factor) {
  return pack_bf16(__fmul_rn(low, factor), __fmul_rn(high, factor));
}

// Shared memory holds rows of 64 bf16 (eight chunks of 16 bytes); chunk c of row r stands at c ^ (r % 8), so that eight rows of one chunk meet all
// banks once.
__device__ __forceinline__ std::uint32_t chunk_offset(std::uint32_t row, std::uint32_t chunk) {
  return row * kv_row_bytes + ((chunk ^ (row & 7u)) << 4);
}

// Pages of the segments first, first + stride, … that a block walks over. Lane l knows the page of positions [16 (l % 8), + 16) of the l / 8-th of
// four of them, and the next four are on their way, so no wait for the table stands between two segments.
class SegmentPages {
 public:
  __device__ __forceinline__ SegmentPages(const LayerKv& kv, std::int32_t row, Visible visible, std::uint32_t first, std::uint32_t stride)
      : table_(kv.table + std::uint64_t(static_cast<std::uint32_t>(row)) * kv.table_stride), visible_(visible), first_(first), stride_(stride) {
    shift_ = 31 - __clz(static_cast<int>(kv.tokens_per_page));
    next_ = load(0);
  }
  // To be called for i = 0, 1, 2, … in order, by all lanes, before segment i's pages are asked for.
  __device__ __forceinline__ void advance(std::uint32_t i) {
    if (i % 4 != 0) return;
    now_ = next_;
    next_ = load(i / 4 + 1);
  }
  __device__ __forceinline__ std::uint32_t page(std::uint32_t i, std::uint32_t sixteen) const {
    return static_cast<std::uint32_t>(__shfl_sync(0xFFFFFFFFu, now_, static_cast<int>(i % 4 * 8 + sixteen)));
  }
  __device__ __forceinline__ std::uint32_t base(std::uint32_t i) const { return (first_ + i * stride_) * kv_segment; }
  __device__ __forceinline__ Visible visible() const { return visible_; }

 private:
  // Entries of positions that nobody sees may be stale: they are not looked at.
  __device__ __forceinline__ std::int32_t load(std::uint32_t four) const {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t at = base(4 * four + lane / 8) + lane % 8 * 16;
    return at < visible_.end && at + 16 > visible_.first ? table_[at >> shift_] : 0;
  }

  const std::int32_t* table_;
  Visible visible_;
  std::uint32_t first_;
  std::uint32_t stride_;
  std::uint32_t shift_ = 0;  // log2 of tokens_per_page
  std::int32_t now_ = 0;
  std::int32_t next_ = 0;
};

// Where the keys of one head begin in page 0, and the steps from there.
struct HeadPages {
  const std::byte* keys;
  std::uint32_t page_bytes;
  std::uint32_t values;  // bytes from a key to its value
};
__device__ __forceinline__ HeadPages head_pages(const LayerKv& kv, std::uint32_t head) {
  const std::uint32_t values = kv.tokens_per_page * kv_row_bytes;
  return {kv.pages + kv.layer_offset + std::uint64_t(head) * 2 * values, static_cast<std::uint32_t>(kv.page_bytes), values};
}

// Begins to copy the keys and values of the i-th segment to `staged`; all Threads threads take part, each commits. Rows outside `visible` become
// zero: what a page holds there may be NaN, and 0 times NaN would reach every row.
template <int Threads>
__device__ __forceinline__ void stage_segment(std::byte* staged, const HeadPages& head, SegmentPages& pages, std::uint32_t i, Visible visible) {
  static_assert(Threads % 64 == 0);  // so that a thread's rows are all the same modulo 8
  pages.advance(i);
  const std::uint32_t chunk = threadIdx.x % 8, row = threadIdx.x / 8;
  const std::uint32_t base = pages.base(i), position_mask = head.values / kv_row_bytes - 1;
  std::byte* const to = staged + chunk_offset(row, chunk);
  const std::byte* const from = head.keys + chunk * 16;
#pragma unroll
  for (std::uint32_t r = 0; r < kv_segment; r += Threads / 8) {
    if (kv_segment % (Threads / 8) != 0 && row + r >= kv_segment) break;
    const std::uint32_t page = pages.page(i, (row + r) / 16);  // one for the whole warp: its four rows are neighbours
    const std::uint32_t position = base + row + r;
    std::byte* const key = to + r * kv_row_bytes;
    if (position >= visible.first && position < visible.end) {
      const std::byte* const at = from + std::uint64_t(page) * head.page_bytes + (position & position_mask) * kv_row_bytes;
      copy_async_16(shared_address(key), at);
      copy_async_16(shared_address(key + staged_values), at + head.values);
    } else {
      *reinterpret_cast<uint4*>(key) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(key + staged_values) = make_uint4(0, 0, 0, 0);
    }
  }
}

// s = q k^T for 8 N staged positions, the first at row 0 of `keys` (a multiple of 8 rows from the begin). q: the four k16 steps of operand A.
template <int N>
__device__ __forceinline__ void score(float (&s)[N][4], const std::uint32_t (&q)[4][4], std::uint32_t keys) {
  const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    std::uint32_t b[2][4];  // matrix m of half h: dims 32 h + 8 m … + 7
#pragma unroll
    for (int h = 0; h < 2; ++h) load_matrix_x4(b[h], keys + chunk_offset(8 * n + lane % 8, 4 * h + lane / 8));
    s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0F;
#pragma unroll
    for (int step = 0; step < 4; ++step) mma_bf16(s[n], q[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
  }
}

// One k16 step of o += p v for 16 dims, those of chunks `chunk` and `chunk` + 1, and the 16 positions that begin at row `first`.
__device__ __forceinline__ void add_values(float (&low)[4], float (&high)[4], const std::uint32_t (&p)[4], std::uint32_t values, std::uint32_t first,
                                           std::uint32_t chunk) {
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t b[4];
  load_matrix_x4_transposed(b, values + chunk_offset(first + lane % 16, chunk + lane / 16));
  mma_bf16(low, p, b[0], b[1]);
  mma_bf16(high, p, b[2], b[3]);
}

// Whether the launchers take it.
inline cudaError_t check_attention(const AttentionArgs& a) {
  if (!supports_attention({a.query_heads, a.kv_heads, a.kv.head_dim})) return cudaErrorInvalidValue;
  const std::uint32_t tokens = a.kv.tokens_per_page;
  if (tokens < attention_page_tokens_min || (tokens & (tokens - 1)) != 0) return cudaErrorInvalidValue;
  if (a.kv.page_bytes > std::numeric_limits<std::uint32_t>::max() || a.attended_stride % 2 != 0) return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace althing::gpu::cuda
