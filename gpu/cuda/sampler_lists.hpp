// What penalties, biases and masks of a step's sampled rows need, as lists behind one another in one block of host memory that is copied to the
// device beside the step's block. SamplerRow holds their addresses there. How long they are differs from step to step, and no graph knows: rows say
// where to look.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/cuda/sampler.hpp"
#include "gpu/row_table.hpp"
#include "scheduler/vocabulary/token_mask.hpp"

namespace althing::gpu::cuda {

static_assert(sizeof(SeenToken) == 8 && sizeof(LogitBias) == 8);

// A mask's words, filled up so that what follows lies as it must.
constexpr std::size_t mask_bytes(std::uint32_t vocabulary) { return (mask_words(vocabulary) + 1) / 2 * 8; }

constexpr std::size_t list_bytes_max(std::uint32_t rows, std::uint32_t context, std::uint32_t vocabulary, std::uint32_t biases) {
  return std::size_t{rows} * ((std::min(context, vocabulary) + std::min(biases, vocabulary)) * sizeof(SeenToken) + mask_bytes(vocabulary));
}
// Of one row.
inline std::size_t list_bytes(const RowState& row, const RowWork& work, std::uint32_t vocabulary) {
  return row.sampling.logit_bias.size() * sizeof(LogitBias) + (row.seen ? row.seen->list().size() * sizeof(SeenToken) : 0) +
         (work.mask.empty() ? 0 : mask_bytes(vocabulary));
}

// The draw that is so many positions in front of the work's last one, without its lists.
inline SamplerRow sampler_of(const RowState& row, const RowWork& work, std::uint32_t back) {
  SamplerRow draw;
  draw.row = static_cast<std::int32_t>(work.row.value);
  draw.position = work.start + work.count - back;
  draw.seed = row.sampling.seed;
  draw.choice = row.sampling.choice;
  draw.temperature = row.sampling.temperature;
  draw.top_p = row.sampling.top_p;
  draw.top_k = row.sampling.top_k;
  draw.min_p = row.sampling.min_p;
  if (row.sampling.logprobs) draw.logprobs = std::max(row.sampling.top_logprobs, 1u);
  return draw;
}

class SamplerLists {
 public:
  // REQUIRES: both places have list_bytes of all rows that are put.
  SamplerLists(std::byte* host, const std::byte* device) : host_(host), device_(device) {}

  // Everything of a draw that depends on the row's own tokens and biases, and on its mask. The token before the one that is drawn may be on the
  // device only. REQUIRES: the row table has checked the work.
  void put(const RowState& row, const RowWork& work, std::uint32_t vocabulary, SamplerRow& to) {
    put_mask(work.mask, vocabulary, to);
    const SamplingParameters& s = row.sampling;
    to.repetition_penalty = s.repetition_penalty;
    to.presence_penalty = s.presence_penalty;
    to.frequency_penalty = s.frequency_penalty;
    to.bias = append<LogitBias>(s.logit_bias, [](const TokenBias& b) { return LogitBias{static_cast<std::int32_t>(b.token), b.bias}; });
    to.bias_count = static_cast<std::uint32_t>(s.logit_bias.size());
    if (!row.seen) return;
    const auto seen = row.seen->list();
    to.seen = append<SeenToken>(seen, [](const gpu::SeenToken& t) { return SeenToken{static_cast<std::int32_t>(t.token), t.output_count}; });
    to.seen_count = static_cast<std::uint32_t>(seen.size());
    to.draw_pending = row.seen->length() < to.position ? 1 : 0;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void put_mask(const std::string& mask, std::uint32_t vocabulary, SamplerRow& to) {
    if (mask.empty()) return;
    const std::vector<std::uint32_t> words = *decode_mask(mask, vocabulary);
    to.allowed = reinterpret_cast<const std::uint32_t*>(device_ + bytes_);
    std::memcpy(host_ + bytes_, words.data(), words.size() * sizeof words[0]);
    bytes_ += mask_bytes(vocabulary);
  }
  template <class Entry, class List, class Convert>
  const Entry* append(const List& list, Convert convert) {
    const std::byte* const place = device_ + bytes_;
    for (const auto& from : list) {
      const Entry entry = convert(from);
      std::memcpy(host_ + bytes_, &entry, sizeof entry);
      bytes_ += sizeof entry;
    }
    return reinterpret_cast<const Entry*>(place);
  }

  std::byte* host_;
  const std::byte* device_;
  std::size_t bytes_ = 0;
};

}  // namespace althing::gpu::cuda
