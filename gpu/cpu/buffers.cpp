// See the header.
#include "gpu/cpu/buffers.hpp"

#include <algorithm>

namespace althing::gpu::cpu {

Buffers::Buffers(const Program& p, std::uint32_t tokens, std::uint32_t expert_rows, std::uint32_t threads)
    : residual(tokens, p.hidden),
      normed(tokens, p.hidden),
      partial(tokens, p.hidden),
      gathered(p.dp_groups > 1 ? tokens : 0, p.hidden),
      queries(tokens, std::size_t{p.query_heads} * p.head_dim),
      attended(tokens, std::size_t{p.query_heads} * p.head_dim),
      keys(tokens, std::size_t{p.kv_heads} * p.head_dim),
      values(tokens, std::size_t{p.kv_heads} * p.head_dim),
      cosine(tokens, p.head_dim / 2),
      sine(tokens, p.head_dim / 2),
      router_logits(tokens, p.experts),
      expert_inner(std::size_t{tokens} * p.experts_per_token + p.experts, p.intermediate),
      expert_outer(std::size_t{tokens} * p.experts_per_token + p.experts, p.hidden),
      chosen(std::size_t{tokens} * p.experts_per_token),
      chosen_weights(chosen.size()),
      chosen_copy(chosen.size()),
      combined(std::size_t{tokens} * (std::size_t{p.hidden} + 1)),
      pair_is_here(chosen.size()),
      vector_a(std::max(p.hidden, p.query_heads)),
      vector_b(p.hidden) {
  const std::size_t in_max = std::max<std::size_t>({p.hidden, p.intermediate, std::size_t{p.query_heads} * p.head_dim});
  // Expanded rows and block sums.
  for (std::uint32_t i = 0; i < threads; ++i) {
    scratch.emplace_back(expansion_floats(in_max) + std::size_t{std::max(tokens, expert_rows)} * row_block);
    inputs.emplace_back(std::max(tokens, expert_rows));
    outputs.emplace_back(std::max(tokens, expert_rows));
  }
}

std::uint64_t Buffers::bytes() const {
  std::uint64_t sum = 0;
  for (const Rows* rows :
       {&residual, &normed, &partial, &gathered, &queries, &attended, &keys, &values, &cosine, &sine, &router_logits, &expert_inner, &expert_outer})
    sum += rows->bytes();
  sum += (chosen.size() + chosen_copy.size()) * sizeof(std::uint32_t) + chosen_weights.size() * sizeof(float) +
         combined.size() * sizeof(std::int64_t) + pair_is_here.size();
  for (const auto& s : scratch) sum += s.size() * sizeof(float);
  return sum;
}

}  // namespace althing::gpu::cpu
