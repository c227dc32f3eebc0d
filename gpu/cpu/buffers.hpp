// The memory of one step, allocated once for the largest step. Rows are padded with zeros to whole lanes, which kernels rely on and nobody writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cpu/linear.hpp"
#include "gpu/ops/ops.hpp"

namespace althing::gpu::cpu {

// (rows, width) floats with padded rows, and the row pointers that kernels take.
class Rows {
 public:
  Rows() = default;
  Rows(std::size_t rows, std::size_t width) : width_(width), stride_(padded(width)), values_(rows * stride_), pointers_(rows) {
    for (std::size_t r = 0; r < rows; ++r) pointers_[r] = values_.data() + r * stride_;
  }

  float* operator[](std::size_t row) const { return pointers_[row]; }
  float* const* rows() const { return pointers_.data(); }
  const float* const* const_rows() const { return pointers_.data(); }
  // The first `rows` rows with their padding.
  std::span<float> span(std::size_t rows) { return {values_.data(), rows * stride_}; }
  std::size_t width() const { return width_; }
  std::size_t stride() const { return stride_; }
  std::uint64_t bytes() const { return values_.size() * sizeof(float) + pointers_.size() * sizeof(float*); }

 private:
  std::size_t width_ = 0;
  std::size_t stride_ = 0;
  std::vector<float> values_;
  std::vector<float*> pointers_;
};

struct Buffers {
  // tokens_max: tokens of a step; expert_rows_max: rows that one expert computes in a step, padding included; threads: of the pool.
  Buffers(const Program& program, std::uint32_t tokens_max, std::uint32_t expert_rows_max, std::uint32_t threads);
  std::uint64_t bytes() const;

  Rows residual, normed;                          // (tokens, hidden)
  Rows partial;                                   // (tokens, hidden): attention's of the group's own tokens, or experts' of all
  Rows gathered;                                  // (tokens, hidden): attention's sums, group after group; with more than one group
  Rows queries, attended;                         // (own tokens, query_heads * head_dim)
  Rows keys, values;                              // (own tokens, kv_heads * head_dim)
  Rows cosine, sine;                              // (tokens, head_dim / 2)
  Rows router_logits;                             // (tokens, experts)
  Rows expert_inner;                              // (tokens * experts_per_token, then experts: each one's empty rows; intermediate)
  Rows expert_outer;                              // likewise; hidden
  std::vector<std::uint32_t> chosen;              // (tokens, experts_per_token) experts
  std::vector<float> chosen_weights;              // likewise
  std::vector<std::uint32_t> chosen_copy;         // likewise: which copy computes it; with an ExpertControl only
  std::vector<std::int64_t> combined;             // (tokens, hidden) fixed point, then (tokens) counts of what did not fit
  std::uint32_t experts_per_token = 0;            // of the layer at hand: pair p is token p / experts_per_token and one of its experts
  std::vector<std::vector<std::uint32_t>> pairs;  // by slot
  std::vector<std::uint8_t> pair_is_here;         // 1: computed by this rank
  std::vector<std::vector<const float*>> inputs;  // by thread: gathered rows
  std::vector<std::vector<float*>> outputs;
  std::vector<std::vector<float>> scratch;  // by thread
  std::vector<float> vector_a, vector_b;    // an op's expanded vectors
};

}  // namespace althing::gpu::cpu
