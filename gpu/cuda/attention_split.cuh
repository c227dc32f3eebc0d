// Attention of one token and KV head by 128 threads, over every `stride`-th of the segments that the token sees: what a block of the attention kernel
// does, and four warps of the kernel that runs a whole step. The math and its order: attention_segment.cuh.
//
// All four warps work on one segment: each scores a quarter of its positions, the maxima and weights meet in shared memory, then each gathers 16 of
// the 64 dims over all positions. The query heads of the KV head are rows 0-7 of the operand; rows 8-15 are zero. Who has a token alone merges as it
// goes. Otherwise segments go to the scratch, and the last to arrive merges them in order.
#pragma once

#include "gpu/cuda/attention_segment.cuh"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t split_threads = 128;  // threads 0 to 127 of a block

// One (list entry, KV head).
struct DecodeUnit {
  std::uint32_t number;
  std::uint32_t token;
  std::uint32_t kv_head;
  std::uint32_t segments;  // visible
};

// In shared memory.
struct SplitShared {
  float maxima[4][32], sums[4][32];  // (warp, lane)
  uint2 weights[8][32];              // (k16 step, lane): a[0] and a[2] of the weights
  bool last;
};

__device__ __forceinline__ void sync_split() { asm volatile("bar.sync 1,128;" ::: "memory"); }

// A unit's place in the scratch.
struct Partials {
  float* o;       // (segments, group, 64)
  float2* state;  // (segments, group): m, d
};

__device__ __forceinline__ Partials partials_of(const AttentionDecodeArgs& args, std::uint32_t group, std::uint32_t unit) {
  const std::uint64_t rows = std::uint64_t(args.segments_max) * group, units = std::uint64_t(args.count) * args.attention.kv_heads;
  float* const begin = reinterpret_cast<float*>(static_cast<std::byte*>(args.scratch) + attention_tickets_max * sizeof(std::uint32_t));
  return {begin + unit * rows * attention_head_dim, reinterpret_cast<float2*>(begin + units * rows * attention_head_dim) + unit * rows};
}

__device__ __forceinline__ __nv_bfloat16* output_row(const AttentionArgs& a, std::uint32_t token, std::uint32_t head) {
  return a.attended + std::uint64_t(token) * a.attended_stride + head * attention_head_dim;
}

// Where two neighbouring values of a head go; d: of the first one.
struct AttendedRow {
  const AttentionArgs& args;
  std::uint32_t token;
  __device__ __forceinline__ void operator()(std::uint32_t head, std::uint32_t d, std::uint32_t pair) const {
    *reinterpret_cast<std::uint32_t*>(output_row(args, token, head) + d) = pair;
  }
};

// All segments of a unit, in order. 16 threads have a head, each four dims; a thread's own pieces of o come through the staging memory, 16 segments a
// group, Groups of them on their way. Lane k of 16 works out the factors of segment k of a group.
template <int Groups, class Store>
__device__ __forceinline__ void merge_partials(const AttentionDecodeArgs& args, std::uint32_t heads, const DecodeUnit& unit, std::byte* staged,
                                               const Store& store) {
  const std::uint32_t g = threadIdx.x / 16, sub = threadIdx.x % 16;
  if (threadIdx.x / 32 * 2 >= heads) return;            // whole warps
  const std::uint32_t row = g < heads ? g : heads - 1;  // with one head the second half of the warp repeats the first
  const Partials from = partials_of(args, heads, unit.number);
  float4* const pieces = reinterpret_cast<float4*>(staged) + threadIdx.x;
  const auto fetch = [&](std::uint32_t group) {
#pragma unroll
    for (std::uint32_t k = 0; k < 16; ++k) {
      const std::uint32_t i = group * 16 + k;
      if (i < unit.segments)
        copy_async_16(shared_address(pieces + (group % Groups * 16 + k) * split_threads),
                      from.o + (std::uint64_t(i) * heads + row) * attention_head_dim + sub * 4);
    }
    copy_async_commit();
  };
  const auto state = [&](std::uint32_t group) {
    const std::uint32_t i = group * 16 + sub;
    return i < unit.segments ? __ldcg(from.state + std::uint64_t(i) * heads + row) : make_float2(minus_infinity, 0.0F);
  };

#pragma unroll
  for (std::uint32_t group = 0; group < Groups; ++group) fetch(group);
  float2 next = state(0);
  RowState total;
  float o[4] = {};
  for (std::uint32_t group = 0; group * 16 < unit.segments; ++group) {
    const float2 own = next;
    next = state(group + 1);
    // The largest m up to the lane's own segment, and up to the one before.
    float upto = fmaxf(total.m, own.x);
#pragma unroll
    for (int step = 1; step < 16; step *= 2) upto = fmaxf(upto, __shfl_up_sync(0xFFFFFFFFu, upto, step, 16));
    const float before = __shfl_up_sync(0xFFFFFFFFu, upto, 1, 16);
    const MergeFactors factors = merge_factors(sub == 0 ? total.m : before, own.x);
    copy_async_wait<Groups - 1>();
    const std::uint32_t here = min(16u, unit.segments - group * 16);
#pragma unroll 4
    for (std::uint32_t k = 0; k < here; ++k) {
      const MergeFactors f = {__shfl_sync(0xFFFFFFFFu, factors.keep, k, 16), __shfl_sync(0xFFFFFFFFu, factors.add, k, 16)};
      const float4 piece = pieces[(group % Groups * 16 + k) * split_threads];
      total.d = merged(total.d, __shfl_sync(0xFFFFFFFFu, own.y, k, 16), f);
      o[0] = merged(o[0], piece.x, f);
      o[1] = merged(o[1], piece.y, f);
      o[2] = merged(o[2], piece.z, f);
      o[3] = merged(o[3], piece.w, f);
    }
    total.m = __shfl_sync(0xFFFFFFFFu, upto, 15, 16);
    __syncwarp();
    fetch(group + Groups);
  }
  if (g >= heads) return;
  const AttentionArgs& a = args.attention;
  const std::uint32_t head = unit.kv_head * heads + g;
  const float factor = output_factor(total, a.sinks == nullptr ? nullptr : a.sinks + head);
  store(head, sub * 4, output_pair(o[0], o[1], factor));
  store(head, sub * 4 + 2, output_pair(o[2], o[3], factor));
}

// Segments first, first + stride, … of `count`, through Stages places of staged_bytes.
template <int Stages>
class SplitAttention {
 public:
  __device__ __forceinline__ SplitAttention(const LayerKv& kv, std::uint32_t kv_head, std::int32_t row, Visible visible, std::uint32_t first,
                                            std::uint32_t stride, std::uint32_t count, std::byte* staged, Visible there)
      : head_(head_pages(kv, kv_head)), pages_(kv, row, visible, first, stride), count_(count), staged_(staged), there_(there) {}

  // Begins to copy the first segments, as far as `there` says that they are in the cache.
  __device__ __forceinline__ void stage() {
#pragma unroll
    for (std::uint32_t i = 0; i < Stages; ++i) {
      if (i < count_) stage_segment<split_threads>(staged_ + i * staged_bytes, head_, pages_, i, there_);
      copy_async_commit();
    }
  }

  // For an object made anew after another one has staged.
  __device__ __forceinline__ void resume() { pages_.advance(0); }

  // A pair of a key's or value's 64 numbers that is not in the cache yet, in threads 0 to 63: keys first.
  struct OwnPair {
    std::uint32_t segment = ~0u;  // of those of the split, 0, 1, …; ~0: none
    std::uint32_t row = 0;        // in the segment
    std::uint32_t pair = 0;
  };

  // Each segment's state and o (dims 16 warp + 8 t + 2 q, + 1 of row g: o[t][0], o[t][1]) go to use(i, state, o), i = 0, 1, …. queries: operand A.
  template <class Use>
  __device__ __forceinline__ void run(const std::uint32_t (&queries)[4][4], const OwnPair& own, SplitShared& shared, const Use& use) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Visible visible = pages_.visible();
    std::uint32_t stage = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
      // Segment i has arrived; everybody is done with segment i - 1, so its place is free for i + Stages - 1.
      if (Stages == 1 && i > 0) {
        sync_split();
        stage_segment<split_threads>(staged_, head_, pages_, i, there_);
        copy_async_commit();
      }
      if (Stages == 1) {
        copy_async_wait<0>();
      } else if (i == 0) {
        copy_async_wait<Stages - 1>();
      } else {
        copy_async_wait<(Stages > 1 ? Stages - 2 : 0)>();
      }
      if (i == own.segment) {
        if (Stages == 1 && i > 0) sync_split();  // what this overwrites has only just been written
        if (threadIdx.x < 64)
          *reinterpret_cast<std::uint32_t*>(staged_ + stage * staged_bytes + threadIdx.x / 32 * staged_values +
                                            chunk_offset(own.row, threadIdx.x % 32 / 4) + threadIdx.x % 4 * 4) = own.pair;
      }
      sync_split();
      if (Stages > 1 && i > 0) {
        if (i + Stages - 1 < count_)
          stage_segment<split_threads>(staged_ + (stage == 0 ? Stages - 1 : stage - 1) * staged_bytes, head_, pages_, i + Stages - 1, there_);
        copy_async_commit();
      }
      const std::uint32_t keys = shared_address(staged_ + stage * staged_bytes), base = pages_.base(i);
      stage = stage == Stages - 1 ? 0 : stage + 1;

      // Scores of the warp's quarter.
      float s[4][4];
      score(s, queries, keys + warp * 32 * kv_row_bytes);
      if (base < visible.first || base + kv_segment > visible.end) mask_scores(s, 0, base + warp * 32, visible);
      shared.maxima[warp][lane] = lane_maximum(s, 0);
      sync_split();

      // Weights, with the largest score of the whole segment.
      RowState segment;
      segment.m = scaled_maximum(
          quad_maximum(fmaxf(fmaxf(shared.maxima[0][lane], shared.maxima[1][lane]), fmaxf(shared.maxima[2][lane], shared.maxima[3][lane]))));
      shared.sums[warp][lane] = weigh(s, 0, segment.m);
#pragma unroll
      for (int step = 0; step < 2; ++step)
        shared.weights[2 * warp + step][lane] =
            make_uint2(pack_bf16(s[2 * step][0], s[2 * step][1]), pack_bf16(s[2 * step + 1][0], s[2 * step + 1][1]));
      sync_split();

      // The warp's 16 dims.
      segment.d = quad_sum(__fadd_rn(__fadd_rn(__fadd_rn(shared.sums[0][lane], shared.sums[1][lane]), shared.sums[2][lane]), shared.sums[3][lane]));
      float o[2][4] = {};
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const uint2 pair = shared.weights[step][lane];
        const std::uint32_t p[4] = {pair.x, 0, pair.y, 0};
        add_values(o[0], o[1], p, keys + staged_values, 16 * step, 2 * warp);
      }
      use(i, segment, o);
    }
  }

 private:
  HeadPages head_;
  SegmentPages pages_;
  std::uint32_t count_;
  std::byte* staged_;
  Visible there_;
};

// A token's queries of one KV head as operand A.
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const DecodeUnit& unit, std::uint32_t heads, std::uint32_t (&queries)[4][4]) {
  const std::uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < 4; ++step) queries[step][0] = queries[step][1] = queries[step][2] = queries[step][3] = 0;
  if (g >= heads) return;
  const auto* from =
      reinterpret_cast<const std::uint32_t*>(a.queries + (std::uint64_t(unit.token) * a.query_heads + unit.kv_head * heads + g) * attention_head_dim);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    queries[step][0] = from[8 * step + q];
    queries[step][2] = from[8 * step + 4 + q];
  }
}

// Runs split `split` of `splits` of a unit to its end: attended outputs are stored by whoever has the token alone or arrives last.
template <int Stages, class Store>
__device__ __forceinline__ void attend_split(const AttentionDecodeArgs& args, const DecodeUnit& unit, std::uint32_t split, std::uint32_t splits,
                                             SplitAttention<Stages>& attention, const std::uint32_t (&queries)[4][4],
                                             const typename SplitAttention<Stages>::OwnPair& own, std::byte* staged, SplitShared& shared,
                                             const Store& store) {
  const AttentionArgs& a = args.attention;
  const std::uint32_t heads = a.query_heads / a.kv_heads;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  RowState total;
  float gathered[2][2] = {};
  const Partials to = partials_of(args, heads, unit.number);
  attention.run(queries, own, shared, [&](std::uint32_t i, RowState segment, const float(&o)[2][4]) {
    if (splits == 1) {
      const MergeFactors f = merge_state(total, segment);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        gathered[t][0] = merged(gathered[t][0], o[t][0], f);
        gathered[t][1] = merged(gathered[t][1], o[t][1], f);
      }
    } else if (g < heads) {
      const std::uint64_t at = std::uint64_t(split + i * splits) * heads + g;
      float2* const piece = reinterpret_cast<float2*>(to.o + at * attention_head_dim) + 8 * warp + q;
      piece[0] = make_float2(o[0][0], o[0][1]);
      piece[4] = make_float2(o[1][0], o[1][1]);
      if (warp == 0 && q == 0) to.state[at] = make_float2(segment.m, segment.d);
    }
  });
  if (splits == 1) {
    if (g < heads) {
      const std::uint32_t query_head = unit.kv_head * heads + g;
      const float factor = output_factor(total, a.sinks == nullptr ? nullptr : a.sinks + query_head);
      store(query_head, 16 * warp + 2 * q, output_pair(gathered[0][0], gathered[0][1], factor));
      store(query_head, 16 * warp + 2 * q + 8, output_pair(gathered[1][0], gathered[1][1], factor));
    }
    return;
  }
  // The last to arrive finds all segments in the scratch, and leaves the ticket as the next launch needs it.
  sync_split();
  if (threadIdx.x == 0) {
    std::uint32_t* const ticket = static_cast<std::uint32_t*>(args.scratch) + unit.number;
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0,[%1],1;" : "=r"(before) : "l"(ticket) : "memory");
    shared.last = before == splits - 1;
    if (shared.last) *ticket = 0;
  }
  sync_split();
  if (shared.last) merge_partials<Stages>(args, heads, unit, staged, store);
}

}  // namespace althing::gpu::cuda
