// What happens to a finished sum of a linear layer, the same for every kernel that makes such sums. store() gets packed rows `8 * 2 * tile + j` (low) and
// `+ 8` (high) of one column at once, j < 8; `column` is the token or pair that the column stands for. Which source rows these are is RowOrder's business.
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

  __device__ __forceinline__ void store(std::uint32_t, std::uint32_t tile, std::uint32_t j, std::int32_t column, float low, float high) const {
    const std::uint32_t half = head_dim / 2, tiles = head_dim / row_tile;
    const std::uint32_t head = tile / tiles, d = tile % tiles * 8 + j;
    if (bias != nullptr) {
      low += bias[head * head_dim + d];
      high += bias[head * head_dim + half + d];
    }
    if (head < query_heads + kv_heads) {
      const float2 turned = rotate(low, high, cosine[std::uint64_t(column) * half + d], sine[std::uint64_t(column) * half + d]);
      low = turned.x;
      high = turned.y;
    }
    __nv_bfloat16* to;
    if (head < query_heads) {
      to = queries + (std::uint64_t(column) * query_heads + head) * head_dim;
    } else {
      const std::int32_t row = tokens.rows[column];
      if (row < 0) return;
      const bool value = head >= query_heads + kv_heads;
      to = reinterpret_cast<__nv_bfloat16*>(kv.key(row, tokens.positions[column], head - query_heads - (value ? kv_heads : 0)));
      if (value) to += kv.tokens_per_page * head_dim;
    }
    to[d] = __float2bfloat16_rn(low);
    to[half + d] = __float2bfloat16_rn(high);
  }
};

// residual += sum + bias. Natural order.
struct ResidualEpilogue {
  const float* bias = nullptr;  // (out) or nullptr
  float* residual = nullptr;    // (tokens, out)
  std::uint32_t out = 0;

  __device__ __forceinline__ void store(std::uint32_t, std::uint32_t tile, std::uint32_t j, std::int32_t column, float low, float high) const {
    add(tile * row_tile + j, column, low);
    add(tile * row_tile + 8 + j, column, high);
  }
  __device__ __forceinline__ void add(std::uint32_t row, std::int32_t column, float sum) const {
    if (row >= out) return;
    if (bias != nullptr) sum += bias[row];
    residual[std::uint64_t(column) * out + row] += sum;
  }
};

// Gate and up (RowOrder::interleaved) to one activation.
struct SwigluEpilogue {
  const float* bias = nullptr;      // (experts, 2 * intermediate) source order: gate, up, gate, up …; or nullptr
  __nv_bfloat16* inner = nullptr;   // (pairs, stride)
  std::uint32_t intermediate = 0;
  std::uint32_t stride = 0;         // k_padded(intermediate); the padding stays zero
  float limit = 0;
  float alpha = 0;

  __device__ __forceinline__ void store(std::uint32_t expert, std::uint32_t tile, std::uint32_t j, std::int32_t column, float low, float high) const {
    const std::uint32_t i = tile * 8 + j;
    if (i >= intermediate) return;
    if (bias != nullptr) {
      const float2 added = reinterpret_cast<const float2*>(bias)[std::uint64_t(expert) * intermediate + i];
      low += added.x;
      high += added.y;
    }
    inner[std::uint64_t(column) * stride + i] = __float2bfloat16_rn(swiglu(low, high, limit, alpha));
  }
};

// sum + bias to a float matrix of its own. Natural order. Expert outputs (column: a pair), router and output logits.
struct PlainEpilogue {
  const float* bias = nullptr;  // (experts, out) or nullptr
  float* output = nullptr;      // (columns, out)
  std::uint32_t out = 0;

  __device__ __forceinline__ void store(std::uint32_t expert, std::uint32_t tile, std::uint32_t j, std::int32_t column, float low, float high) const {
    put(expert, tile * row_tile + j, column, low);
    put(expert, tile * row_tile + 8 + j, column, high);
  }
  __device__ __forceinline__ void put(std::uint32_t expert, std::uint32_t row, std::int32_t column, float sum) const {
    if (row >= out) return;
    if (bias != nullptr) sum += bias[std::uint64_t(expert) * out + row];
    output[std::uint64_t(column) * out + row] = sum;
  }
};

}  // namespace althing::gpu::cuda
