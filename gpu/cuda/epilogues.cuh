// What happens to a finished sum of a linear layer, the same for every kernel that makes such sums: packed rows `16 * tile + j` (low) and 8 further
// (high) of one column at once, j < 8; a column's index is the token or pair that it stands for. Which source rows these are is RowOrder's business.
//
// It comes in three parts, so that what must be read is read for several columns at once: rows() holds what belongs to the two rows alone, places()
// what belongs to `batch` columns (as many as the registers allow), finish() stores. Where there is no bias, -0 stands for it: adding it changes no
// bit.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

// q | k | v rows in RowOrder::halves of head_dim: bias, rotation of q and k, keys and values into the cache.
struct QkvEpilogue {
  const float* bias = nullptr;    // (rows) source order, or nullptr
  const float* cosine = nullptr;  // (tokens, head_dim / 2)
  const float* sine = nullptr;
  __nv_bfloat16* queries = nullptr;  // (tokens, query_heads * head_dim)
  StepTokens tokens;
  LayerKv kv;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;

  static constexpr std::uint32_t batch = 4;
  struct Rows {
    std::uint32_t head, d;  // d: place of the low row in its half of the head
    float low_bias, high_bias;
  };
  struct Place {
    __nv_bfloat16* to;  // the head's first element, or nullptr: not stored
    float cosine, sine;
  };

  __device__ __forceinline__ Rows rows(std::uint32_t, std::uint32_t tile, std::uint32_t j) const {
    const std::uint32_t half = head_dim / 2, tiles = head_dim / row_tile;
    Rows r{tile / tiles, tile % tiles * 8 + j, -0.0F, -0.0F};
    if (bias != nullptr) {
      r.low_bias = bias[r.head * head_dim + r.d];
      r.high_bias = bias[r.head * head_dim + half + r.d];
    }
    return r;
  }
  template <int N>
  __device__ __forceinline__ void places(const Rows& r, const std::int32_t (&columns)[N], Place (&p)[N]) const {
    const std::uint32_t half = head_dim / 2;
    if (r.head < query_heads + kv_heads) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        p[i].cosine = cosine[std::uint64_t(columns[i]) * half + r.d];
        p[i].sine = sine[std::uint64_t(columns[i]) * half + r.d];
      }
    }
    if (r.head < query_heads) {
#pragma unroll
      for (int i = 0; i < N; ++i) p[i].to = queries + (std::uint64_t(columns[i]) * query_heads + r.head) * head_dim;
      return;
    }
    const bool value = r.head >= query_heads + kv_heads;
    const std::uint32_t kv_head = r.head - query_heads - (value ? kv_heads : 0), value_offset = value ? kv.tokens_per_page * head_dim : 0;
    if (kv.slots != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const std::int32_t slot = kv.slots[columns[i]];
        p[i].to = slot < 0 ? nullptr : reinterpret_cast<__nv_bfloat16*>(kv.key_at(slot, kv_head)) + value_offset;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::int32_t row = tokens.rows[columns[i]];
      std::byte* key = kv.key(row < 0 ? 0 : row, row < 0 ? 0 : tokens.positions[columns[i]], kv_head);
      p[i].to = row < 0 ? nullptr : reinterpret_cast<__nv_bfloat16*>(key) + value_offset;
    }
  }
  __device__ __forceinline__ void finish(const Rows& r, const Place& p, float low, float high) const {
    low += r.low_bias;
    high += r.high_bias;
    if (r.head < query_heads + kv_heads) {
      const float2 turned = rotate(low, high, p.cosine, p.sine);
      low = turned.x;
      high = turned.y;
    }
    if (p.to == nullptr) return;
    p.to[r.d] = __float2bfloat16_rn(low);
    p.to[head_dim / 2 + r.d] = __float2bfloat16_rn(high);
  }
};

// residual += sum + bias. Natural order.
struct ResidualEpilogue {
  const float* bias = nullptr;  // (out) or nullptr
  float* residual = nullptr;    // (tokens, out)
  std::uint32_t out = 0;

  static constexpr std::uint32_t batch = 8;
  struct Rows {
    std::uint32_t low;
    bool low_exists, high_exists;
    float low_bias, high_bias;
  };
  struct Place {
    float* to;  // of the low row
    float low, high;
  };

  __device__ __forceinline__ Rows rows(std::uint32_t, std::uint32_t tile, std::uint32_t j) const {
    const std::uint32_t low = tile * row_tile + j;
    Rows r{low, low < out, low + 8 < out, -0.0F, -0.0F};
    if (bias != nullptr && r.low_exists) r.low_bias = bias[low];
    if (bias != nullptr && r.high_exists) r.high_bias = bias[low + 8];
    return r;
  }
  template <int N>
  __device__ __forceinline__ void places(const Rows& r, const std::int32_t (&columns)[N], Place (&p)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      p[i].to = residual + std::uint64_t(columns[i]) * out + r.low;
      p[i].low = r.low_exists ? p[i].to[0] : 0.0F;
      p[i].high = r.high_exists ? p[i].to[8] : 0.0F;
    }
  }
  __device__ __forceinline__ void finish(const Rows& r, const Place& p, float low, float high) const {
    if (r.low_exists) p.to[0] = p.low + (low + r.low_bias);
    if (r.high_exists) p.to[8] = p.high + (high + r.high_bias);
  }
};

// Gate and up (RowOrder::interleaved) to one activation.
struct SwigluEpilogue {
  const float* bias = nullptr;     // (experts, 2 * intermediate) source order: gate, up, gate, up …; or nullptr
  __nv_bfloat16* inner = nullptr;  // (pairs, stride)
  std::uint32_t intermediate = 0;
  std::uint32_t stride = 0;  // k_padded(intermediate); the padding stays zero
  float limit = 0;
  float alpha = 0;

  static constexpr std::uint32_t batch = 8;
  struct Rows {
    std::uint32_t i;
    float2 bias;
  };
  struct Place {
    __nv_bfloat16* to;
  };

  __device__ __forceinline__ Rows rows(std::uint32_t expert, std::uint32_t tile, std::uint32_t j) const {
    Rows r{tile * 8 + j, make_float2(-0.0F, -0.0F)};
    if (bias != nullptr && r.i < intermediate) r.bias = reinterpret_cast<const float2*>(bias)[std::uint64_t(expert) * intermediate + r.i];
    return r;
  }
  template <int N>
  __device__ __forceinline__ void places(const Rows& r, const std::int32_t (&columns)[N], Place (&p)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i].to = inner + std::uint64_t(columns[i]) * stride + r.i;
  }
  __device__ __forceinline__ void finish(const Rows& r, const Place& p, float low, float high) const {
    if (r.i < intermediate) *p.to = __float2bfloat16_rn(swiglu(low + r.bias.x, high + r.bias.y, limit, alpha));
  }
};

// sum + bias to a float matrix of its own. Natural order. Expert outputs (column: a pair), router and output logits.
struct PlainEpilogue {
  const float* bias = nullptr;  // (experts, out) or nullptr
  float* output = nullptr;      // (columns, out)
  std::uint32_t out = 0;

  static constexpr std::uint32_t batch = 8;
  struct Rows {
    std::uint32_t low;
    bool low_exists, high_exists;
    float low_bias, high_bias;
  };
  struct Place {
    float* to;  // of the low row
  };

  __device__ __forceinline__ Rows rows(std::uint32_t expert, std::uint32_t tile, std::uint32_t j) const {
    const std::uint32_t low = tile * row_tile + j;
    Rows r{low, low < out, low + 8 < out, -0.0F, -0.0F};
    if (bias != nullptr && r.low_exists) r.low_bias = bias[std::uint64_t(expert) * out + low];
    if (bias != nullptr && r.high_exists) r.high_bias = bias[std::uint64_t(expert) * out + low + 8];
    return r;
  }
  template <int N>
  __device__ __forceinline__ void places(const Rows& r, const std::int32_t (&columns)[N], Place (&p)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i].to = output + std::uint64_t(columns[i]) * out + r.low;
  }
  __device__ __forceinline__ void finish(const Rows& r, const Place& p, float low, float high) const {
    if (r.low_exists) p.to[0] = low + r.low_bias;
    if (r.high_exists) p.to[8] = high + r.high_bias;
  }
};

}  // namespace althing::gpu::cuda
