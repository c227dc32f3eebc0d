// A decoder described as data: sizes, weights and variants, layer by layer. Model files (gpu/models) build it from a checkpoint, backends
// lower it to ops; neither knows the other. Shapes are those of the whole model; a backend takes its rank's part by RankPlacement.
// Weight views point into the checkpoint's mapping, which must outlive the spec.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/tensor.hpp"

namespace althing::gpu {

// y = W x + b. weight bf16 or f32 (out, in); bias (out) or empty.
struct Linear {
  TensorView weight;
  TensorView bias;
};

// One matrix an expert. MXFP4: blocks u8 (experts, out, in/32, 16), scales u8 (experts, out, in/32). Otherwise `plain` holds bf16 or f32:
// (experts, out, in), or (experts, in, out) when `transposed`. bias (experts, out).
struct ExpertLinear {
  TensorView blocks;
  TensorView scales;
  TensorView plain;
  bool transposed = false;
  TensorView bias;
  std::uint32_t out = 0;
  std::uint32_t in = 0;

  bool is_mxfp4() const { return !blocks.empty(); }
};

// Rotary positions with YaRN: inverse frequencies already interpolated, attention factor folded into cos and sin.
struct Rotary {
  std::vector<float> inverse_frequencies;  // head_dim/2
  float attention_factor = 1.0F;           // cos and sin are both multiplied by it
};

struct Attention {
  TensorView norm;  // (hidden)
  float norm_epsilon = 1e-5F;
  Linear q, k, v, out;       // q (query_heads*head_dim, hidden), k and v (kv_heads*head_dim, hidden), out (hidden, query_heads*head_dim)
  TensorView sinks;          // (query_heads) or empty
  std::uint32_t window = 0;  // 0: full
};

// score none, selection by top-k of the logits, softmax over the chosen (reference: gpt-oss, Mixtral).
struct Router {
  Linear linear;  // (experts, hidden)
  std::uint32_t experts_per_token = 0;
};

struct MoE {
  TensorView norm;  // (hidden)
  float norm_epsilon = 1e-5F;
  Router router;
  ExpertLinear gate_up;  // out = 2*intermediate; even rows are gate, odd rows are up
  ExpertLinear down;     // out = hidden, in = intermediate
  float swiglu_limit = 7.0F;
  float swiglu_alpha = 1.702F;
};

struct DecoderLayer {
  Attention attention;
  MoE moe;
};

struct DecoderSpec {
  std::uint32_t hidden = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t experts = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t context_tokens_max = 0;
  Rotary rotary;
  TensorView embedding;  // (vocabulary, hidden)
  std::vector<DecoderLayer> layers;
  TensorView norm;  // (hidden)
  float norm_epsilon = 1e-5F;
  TensorView head;  // (vocabulary, hidden)
};

}  // namespace althing::gpu
