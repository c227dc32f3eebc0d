// The fine ops that every decoder is lowered to, in the order in which a step runs them. An op holds its rank's weights and sizes and nothing
// of a model's name; backends decide how to compute it, alone or fused with its neighbours. Each has one check of its shapes (shape_check.hpp).
//
// Values that flow between ops, for T tokens of a step: residual (T, hidden), normed (T, hidden), queries (T, query_heads * head_dim),
// attended (the same), partial (T, hidden; this rank's part of a sum over ranks), chosen experts and weights (T, experts_per_token).
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "gpu/decoder_spec.hpp"
#include "gpu/ops/matrix.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::gpu {

// residual = table[token].
struct EmbedOp {
  Matrix table;  // (vocabulary, hidden)
};

// normed = residual * rsqrt(mean(residual^2) + epsilon) * weight.
struct NormOp {
  Vector weight;  // (hidden)
  float epsilon = 0;
};

// q, k, v = W normed + bias; q and k rotated by position; k and v appended to the KV cache.
struct QkvOp {
  std::uint32_t layer = 0;
  std::uint32_t head_dim = 0;
  Matrix q, k, v;
  Vector q_bias, k_bias, v_bias;
};

// attended = softmax over the visible positions (and the sink) of q k / sqrt(head_dim), times v.
struct AttentionOp {
  std::uint32_t layer = 0;
  std::uint32_t window = 0;
  std::uint32_t query_heads = 0;  // of this rank; a multiple of kv_heads
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  Vector sinks;  // (query_heads) or empty
};

// The ops from qkv to attn_out compute tokens of this rank's DP group only; `partial` holds those, in the step's order.
// partial = W[:, this rank's heads] attended.
struct AttnOutOp {
  Matrix out;  // (hidden, query_heads * head_dim)
};

// residual += sum over ranks + bias; then normed as NormOp. The sum is of `partial` over the ranks of each token's DP group, in rank order, or of the
// fixed-point combine over all ranks.
struct ReduceAddNormOp {
  enum class Source : std::uint8_t { partial, fixed_point };
  Source source = Source::partial;
  Vector bias;  // (hidden) or empty; added once
  NormOp norm;
  std::uint32_t layer = 0;  // the layer whose sum this is
};

// logits = W normed + bias (all experts, on every rank); the experts_per_token largest, the smaller id first among equals; softmax over them.
struct RouteOp {
  std::uint32_t layer = 0;
  Matrix weight;  // (experts, hidden)
  Vector bias;
  std::uint32_t experts_per_token = 0;
};

// For every expert held here: which tokens chose it and are this copy's turn.
struct GatherOp {
  std::uint32_t layer = 0;
  std::uint32_t experts = 0;
  std::vector<HeldExpert> held;  // by slot
};

// For every (token, expert) gathered: W2 (swiglu(W1 normed + b1)) + b2, whole on this rank.
struct ExpertsOp {
  std::uint32_t layer = 0;
  float swiglu_limit = 0;
  float swiglu_alpha = 0;
  std::vector<Matrix> gate_up, down;  // by slot: (2 * intermediate, hidden), (hidden, intermediate)
  std::vector<Vector> gate_up_bias, down_bias;
};

// fixed = sum over the token's experts computed here of weight * output, as 64-bit fixed point (ops/fixed_point.hpp).
struct CombineOp {
  std::uint32_t layer = 0;
};

// logits = W normed for the tokens that are sampled, gathered over ranks.
struct LogitsOp {
  Matrix head;                   // (vocabulary of this rank, hidden)
  std::uint32_t vocabulary = 0;  // of the model
};

// One draw a sampled row, the same on every rank.
struct SampleOp {
  std::uint32_t vocabulary = 0;
};

using Op = std::variant<EmbedOp, NormOp, QkvOp, AttentionOp, AttnOutOp, ReduceAddNormOp, RouteOp, GatherOp, ExpertsOp, CombineOp, LogitsOp, SampleOp>;

std::string_view name_of(const Op& op);

// Ops with the same group are neighbours that a backend may run as one.
enum class FusionGroup : std::uint8_t { embed, attention, reduce, moe, head };

FusionGroup fusion_group(const Op& op);

struct Program {
  std::uint32_t hidden = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;  // the most of any layer
  std::uint32_t intermediate = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t context_tokens_max = 0;
  std::uint32_t query_heads = 0;  // of this rank
  std::uint32_t kv_heads = 0;
  std::uint32_t dp_groups = 1;  // in the world
  DpGroup dp_group{};           // of this rank
  Rotary rotary;
  std::vector<Op> ops;
  std::uint64_t weight_bytes = 0;  // of this rank
};

}  // namespace althing::gpu
