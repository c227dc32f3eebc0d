// Draws of a step's sampled rows on the GPU: the same draws as gpu/sampling.hpp, for rows of all kinds in one set of launches, without the host.
// A draw depends on its own row of logits and parameters only, never on what is beside it in the batch.
//
// Order of what happens to a row: penalties, bias, mask (a token that is not allowed takes no part at all); then logprobs are of this
// distribution; then temperature, top-k, top-p, min-p and the draw.
//
// Where a draw could differ from the CPU's: logarithms and exponentials of the two libraries differ in the last bit, and the sum of top-p runs in
// another order. So only where two scores, or a logit and the floor of min-p, are equal to about 1e-15, or where the probability up to
// a token is within 1e-12 of top-p. Draws of this file repeat bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/numerics.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t logprobs_max = 20;        // alternatives a row can ask for
inline constexpr std::uint32_t sampler_rows_max = 4096;  // rows of one call
inline constexpr std::size_t sampler_scratch_bytes = sampler_rows_max * 20;

struct LogitBias {
  std::int32_t token = 0;
  float bias = 0;
};
struct SeenToken {
  std::int32_t token = 0;          // occurs in prompt or output
  std::uint32_t output_count = 0;  // how often in the output
};

// One sampled row, in device memory, as are the lists it points to. Lists name each token at most once; tokens outside the vocabulary are ignored.
struct SamplerRow {
  std::int32_t row = -1;       // where its last token goes; -1: padding, nothing is written
  std::uint32_t position = 0;  // absolute, of the drawn token
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  std::uint32_t top_k = 0;
  float min_p = 0;
  float repetition_penalty = 1;  // seen tokens: a positive logit is divided by it, a negative one multiplied
  float presence_penalty = 0;    // subtracted for tokens of the output
  float frequency_penalty = 0;   // likewise, times their count
  std::uint32_t logprobs = 0;    // 0: none; n: the chosen token's and those of the n most likely, up to logprobs_max
  std::uint32_t seen_count = 0;
  std::uint32_t bias_count = 0;
  std::uint32_t draw_pending = 0;  // 1: the row's last token is of the output too, and `seen` does not have it yet
  const SeenToken* seen = nullptr;
  const LogitBias* bias = nullptr;
  const std::uint32_t* allowed = nullptr;  // (ceil(vocabulary / 32)) bit token % 32 of word token / 32; nullptr: all
};

// nonfinite: a logit (allowed or not) is not finite, or no token is allowed; the token is 0 then, so that a step that is already planned can run.
struct DrawnRow {
  std::int32_t token = 0;
  std::int32_t nonfinite = 0;
};

struct SamplerArgs {
  float* logits = nullptr;           // (count, vocabulary); penalties and biases change it in place
  const SamplerRow* rows = nullptr;  // (count)
  std::uint32_t count = 0;
  std::uint32_t vocabulary = 0;
  // Which kinds of rows may occur, fixed at capture. A kind that is left out costs no launch and must not occur.
  bool with_adjustments = true;        // penalties or biases
  bool with_filters = true;            // top-k, top-p, min-p or logprobs
  void* scratch = nullptr;             // sampler_scratch_bytes, zeroed once by its owner; not shared by calls that may overlap
  DrawnRow* drawn = nullptr;           // (count)
  std::int32_t* last_token = nullptr;  // (rows), by SamplerRow::row; or nullptr where no draw is pending
  float* chosen_logprobs = nullptr;    // (count), or nullptr; rows that ask for none, or are nonfinite, leave their place alone
  std::int32_t* top_tokens = nullptr;  // (count, logprobs_max), most likely first, -1 where no token is left; or nullptr
  float* top_logprobs = nullptr;       // likewise; -infinity where no token is left
};

// Three launches at most. cudaErrorInvalidValue: more rows than sampler_rows_max, or a vocabulary above sampler_vocabulary_max.
cudaError_t sample(const SamplerArgs& args, cudaStream_t stream);

// Rows without filters are shared by blocks of 256 threads, each of which takes tiles of 2048 logits in turn.
inline constexpr std::uint32_t plain_threads = 256;
inline constexpr std::uint32_t plain_tile = plain_threads * 8;
// Blocks a row: up to 528 in all (four on each of 132 multiprocessors), as long as each has a tile.
constexpr std::uint32_t plain_blocks(std::uint32_t count, std::uint32_t vocabulary) {
  const std::uint32_t wanted = 528 / (count == 0 ? 1 : count), most = ceil_div(vocabulary, plain_tile);
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

// Rows with filters are each held by the shared memory of a cluster of 8 blocks, a slice each, from the first look at them to the draw.
inline constexpr std::uint32_t filter_blocks = 8;
inline constexpr std::uint32_t filter_threads = 512;
inline constexpr std::uint32_t filter_clusters_max = 32;  // what 132 multiprocessors hold of them; each takes rows in turn
constexpr std::uint32_t filter_slice(std::uint32_t vocabulary) { return ceil_div(ceil_div(vocabulary, filter_blocks), 4) * 4; }
inline constexpr std::uint32_t sampler_vocabulary_max = filter_blocks * 53'248;  // 208 KiB a slice

}  // namespace althing::gpu::cuda
