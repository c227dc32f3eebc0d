// What happens to a token's residual between linear layers: embedding and rotation angles at the start of a step, the sum of the experts' outputs,
// the norms, and the router with its choice of experts. Each is one kernel; sums inside a row run in one order whatever the batch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/route_tallies.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

// A pair of words that the first kernel of a step stores: page tables change by a few entries a step.
struct TableUpdate {
  std::int32_t* entry = nullptr;
  std::int32_t page = 0;
};

// residual = table[token], normed = rms_norm(residual), cosine and sine of every token's position; page tables updated; expert counts cleared. The
// last two also for a step without tokens.
struct BeginArgs {
  StepTokens tokens;
  const std::int32_t* ids = nullptr;         // (tokens) token ids; -1: the row's last draw
  const std::int32_t* last_drawn = nullptr;  // (rows)
  const __nv_bfloat16* table = nullptr;      // (vocabulary, hidden)
  const float* norm = nullptr;               // (hidden)
  float epsilon = 0;
  std::uint32_t hidden = 0;
  std::uint32_t half = 0;  // head_dim / 2
  const float* inverse_frequencies = nullptr;
  float attention_factor = 1;
  const TableUpdate* updates = nullptr;
  const std::uint32_t* update_count = nullptr;
  std::uint32_t* counts = nullptr;  // of the routing
  std::uint32_t experts = 0;
  std::uint32_t* cleared = nullptr;  // (cleared_words) set to zero
  std::uint32_t cleared_words = 0;
  std::uint32_t* step = nullptr;          // counted up, or nullptr
  unsigned long long* tallies = nullptr;  // (tally_words) set to zero
  std::uint32_t tally_words = 0;
  float* residual = nullptr;        // (tokens, hidden)
  __nv_bfloat16* normed = nullptr;  // (tokens, stride), padding never written
  std::uint32_t stride = 0;
  float* cosine = nullptr;  // (tokens, half)
  float* sine = nullptr;
};
cudaError_t begin_step(const BeginArgs& args, cudaStream_t stream);

// residual += sum over the token's pairs of weight * output, as 64-bit fixed point (ops/fixed_point.hpp; NaN when an addend does not fit); normed =
// rms_norm(residual); clears the routing's counts for the next layer.
struct CombineNormArgs {
  StepTokens tokens;
  Routing routing;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  const float* outputs = nullptr;  // (pairs, hidden)
  const float* norm = nullptr;
  float epsilon = 0;
  std::uint32_t hidden = 0;
  float* residual = nullptr;
  __nv_bfloat16* normed = nullptr;
  std::uint32_t stride = 0;
};
cudaError_t combine_norm(const CombineNormArgs& args, cudaStream_t stream);

// normed = rms_norm(residual); logits = W normed + bias in the class of linear layers; the experts_per_token largest (the smaller id among equals)
// with softmax over them; pairs appended to the lists of their experts. REQUIRES: routing.counts is zero.
struct NormRouteArgs {
  StepTokens tokens;
  const float* residual = nullptr;
  const float* norm = nullptr;
  float epsilon = 0;
  std::uint32_t hidden = 0;
  __nv_bfloat16* normed = nullptr;
  std::uint32_t stride = 0;
  PackedMatrix weights;         // bf16 (experts, hidden), natural order
  const float* bias = nullptr;  // (experts) or nullptr
  std::uint32_t experts_per_token = 0;
  Routing routing;
  float* logits = nullptr;  // (tokens, experts), or nullptr when nobody looks
  RouteTallies tallies;
};
cudaError_t norm_route(const NormRouteArgs& args, cudaStream_t stream);

// output[i] = input[list[i]]; rows of `stride` elements, a multiple of 8.
struct GatherArgs {
  const std::int32_t* list = nullptr;  // (count)
  std::uint32_t count = 0;
  const __nv_bfloat16* input = nullptr;
  __nv_bfloat16* output = nullptr;
  std::uint32_t stride = 0;
};
cudaError_t gather_rows(const GatherArgs& args, cudaStream_t stream);

// Whether norm_route takes a model: hidden a multiple of 4 up to 4096 with at most 16 K segments, experts at most 128, experts_per_token at most 16.
constexpr bool supports_router(std::uint32_t hidden, std::uint32_t experts, std::uint32_t experts_per_token) {
  return hidden % 4 == 0 && hidden <= 4096 && k_segments(hidden) <= 16 && experts <= 128 && experts_per_token <= 16 && experts_per_token <= experts;
}

}  // namespace althing::gpu::cuda
