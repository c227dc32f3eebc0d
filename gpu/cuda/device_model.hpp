// A rank's weights on the device, by layer, in the form that kernels take. Made from a Program by weight_loader.hpp; the decoder only reads it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "gpu/cuda/head_screen.hpp"
#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

struct Norm {
  const float* weight = nullptr;  // (hidden)
  float epsilon = 0;
};

struct DeviceLayer {
  PackedMatrix qkv;                 // q, k and v rows one after the other, RowOrder::halves of head_dim
  const float* qkv_bias = nullptr;  // (rows) or nullptr
  std::uint32_t window = 0;
  const float* sinks = nullptr;  // (query_heads) or nullptr
  PackedMatrix out;
  const float* out_bias = nullptr;  // (hidden) or nullptr
  Norm moe_norm;
  PackedMatrix router;
  const float* router_bias = nullptr;
  std::uint32_t experts_per_token = 0;
  PackedMatrix gate_up;                 // one an expert, RowOrder::interleaved
  const float* gate_up_bias = nullptr;  // (experts, 2 * intermediate) or nullptr
  PackedMatrix down;
  const float* down_bias = nullptr;  // (experts, hidden) or nullptr
  float swiglu_limit = 0;
  float swiglu_alpha = 0;
  Norm next_norm;  // of what follows: the next layer's attention, or the head
};

struct DeviceModel {
  std::uint32_t hidden = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t vocabulary = 0;
  const __nv_bfloat16* embedding = nullptr;  // (vocabulary, hidden)
  Norm first_norm;
  std::vector<DeviceLayer> layers;
  PackedMatrix head;
  HeadScreen screen;                           // of the head, or none
  const float* inverse_frequencies = nullptr;  // (head_dim / 2)
  float attention_factor = 1;
};

}  // namespace althing::gpu::cuda
