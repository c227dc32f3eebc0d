// What the host tells the device about one step: one block of memory, sent in one copy. Where each part lies follows from the step's shape alone, so
// that a captured graph of that shape finds everything in place. Pure arithmetic, tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/attention.hpp"
#include "gpu/cuda/norm.hpp"
#include "gpu/cuda/sampler.hpp"

namespace althing::gpu::cuda {

// Everything a graph fixes: how many places of each kind a step has. Places that a step leaves empty hold -1 (rows, lists) or a count of 0 (tiles).
struct StepShape {
  std::uint32_t tokens = 0;
  std::uint32_t decodes = 0;  // tokens whose attention is computed one by one
  std::uint32_t tiles = 0;    // of prefill attention
  std::uint32_t sampled = 0;  // when as many as tokens and decodes: the same ones in the same order
  bool filters = false;       // a sampled row has top-k, top-p or min-p, or asks for logprobs
  bool far = false;           // the one token of the step sees more positions than Decoder::far allows
  bool adjustments = false;   // a sampled row has penalties or biases

  // Places of tokens and of sampled rows are the same: a step of decodes alone.
  constexpr bool all_sampled() const { return tokens == decodes && tokens == sampled; }
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

inline constexpr std::uint32_t kv_groups_max = 4;

// Byte offsets into the block. Table updates come last because their number differs from step to step.
struct StepOffsets {
  std::size_t rows = 0;       // int32 (tokens)
  std::size_t positions = 0;  // int32 (tokens)
  std::size_t ids = 0;        // int32 (tokens), -1: the row's last draw
  std::size_t slots = 0;      // int32 (kv_groups_max, tokens), as LayerKv's
  std::size_t decodes = 0;    // int32 (decodes) token indexes
  std::size_t tiles = 0;      // PrefillTile (tiles)
  std::size_t sampled = 0;    // int32 (sampled) token indexes
  std::size_t samplers = 0;   // SamplerRow (sampled)
  std::size_t update_count = 0;
  std::size_t updates = 0;  // TableUpdate
};

constexpr StepOffsets step_offsets(const StepShape& s) {
  StepOffsets o;
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    const std::size_t begin = at;
    at = (at + bytes + 15) / 16 * 16;
    return begin;
  };
  o.rows = take(s.tokens * sizeof(std::int32_t));
  o.positions = take(s.tokens * sizeof(std::int32_t));
  o.ids = take(s.tokens * sizeof(std::int32_t));
  o.slots = take(kv_groups_max * s.tokens * sizeof(std::int32_t));
  o.decodes = take(s.decodes * sizeof(std::int32_t));
  o.tiles = take(s.tiles * sizeof(PrefillTile));
  o.sampled = take(s.sampled * sizeof(std::int32_t));
  o.samplers = take(s.sampled * sizeof(SamplerRow));
  o.update_count = take(sizeof(std::uint32_t));
  o.updates = at;
  return o;
}

// Decode steps are rounded up to one of these many tokens, so that few graphs serve all of them. 0: too many for a graph.
constexpr std::uint32_t decode_bucket(std::uint32_t tokens) {
  constexpr std::uint32_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256};
  for (const std::uint32_t size : sizes)
    if (tokens <= size) return size;
  return 0;
}

}  // namespace althing::gpu::cuda
