// Generous on purpose: a byte too few for KV costs nothing that anybody notices, a byte too many ends the start.
#include "gpu/cuda/memory_plan.hpp"

#include <algorithm>
#include <string>

#include "gpu/cuda/numerics.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint64_t fixed_bytes = std::uint64_t{1} << 30;  // the driver's context, kernels, graphs, page tables, fragmentation
constexpr std::uint64_t token_bucket = 128;                    // steps are computed for whole buckets of tokens
constexpr std::uint32_t processors_max = 144;                  // of any Hopper GPU
constexpr std::uint32_t logits_rows_min = 64;
constexpr std::uint64_t float_bytes = 4, half_bytes = 2, exact_bytes = 8;

std::string mib(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

// The second part is the screen of the head (head_screen.hpp).
std::uint64_t weight_bytes_max(const Program& program) {
  const std::uint64_t screen = std::uint64_t{program.vocabulary + row_tile} * (k_padded(program.hidden) + 3 * float_bytes);
  return program.weight_bytes + program.weight_bytes / 64 + screen;
}

std::uint64_t scratch_bytes_max(const Program& p, const Limits& limits) {
  const std::uint64_t tokens = (limits.step_tokens_max + token_bucket - 1) / token_bucket * token_bucket;
  const std::uint64_t heads = std::uint64_t{p.query_heads} * p.head_dim, hidden = k_padded(p.hidden);
  // residual, partial sums and a copy; normed; queries and attended; the exact sums of the experts.
  const std::uint64_t token_bytes = hidden * (3 * float_bytes + half_bytes + exact_bytes) + heads * 2 * float_bytes +
                                    p.experts * (float_bytes + 2 * sizeof(std::uint32_t)) + p.head_dim * float_bytes;
  const std::uint64_t pair_bytes = k_padded(p.intermediate) * half_bytes + hidden * float_bytes;
  // Split attention leaves (m, d, o) of each segment of a row's context, for as many rows as fill the GPU twice.
  const std::uint64_t context = std::min(limits.context_tokens_max, p.context_tokens_max);
  const std::uint64_t segments = (context + kv_segment - 1) / kv_segment;
  const std::uint64_t split_rows = std::min<std::uint64_t>(limits.rows_max, 2 * processors_max / std::max(p.kv_heads, 1u));
  const std::uint64_t split_bytes = split_rows * segments * p.query_heads * (std::uint64_t{p.head_dim} + 2) * float_bytes;
  const std::uint64_t logits_bytes = std::uint64_t{std::max(limits.rows_max, logits_rows_min)} * p.vocabulary * 2 * float_bytes;
  // Which tokens a row has seen, and which have a bias; two steps' of it. Logprobs are a few KB.
  const std::uint64_t list_bytes = 2 * limits.rows_max * (exact_bytes * (context + limits.logit_bias_max) + std::uint64_t{p.vocabulary} / 8);
  return fixed_bytes + list_bytes + tokens * (token_bytes + p.experts_per_token * pair_bytes) + split_bytes + logits_bytes;
}

Result<std::uint64_t> kv_bytes(const Program& program, const Limits& limits, std::uint64_t device_bytes, double fraction) {
  const auto usable = static_cast<std::uint64_t>(static_cast<double>(device_bytes) * fraction);
  const std::uint64_t weights = weight_bytes_max(program), scratch = scratch_bytes_max(program, limits);
  if (usable > weights + scratch) return usable - weights - scratch;
  return Error{ErrorCode::too_large,
               "a GPU of " + mib(device_bytes) + " may be used up to " + mib(usable) + ", weights take up to " + mib(weights) +
                   " and scratch up to " + mib(scratch) +
                   ": nothing is left for the KV cache; use more ranks, fewer rows and step tokens, or a larger fraction",
               "gpu-memory-fraction"};
}

}  // namespace althing::gpu::cuda
