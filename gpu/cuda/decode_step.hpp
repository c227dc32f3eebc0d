// All layers and the head of a step of one token, as one kernel, for a model whose weights are read once and used once. Blocks, one
// a multiprocessor, stay for the whole step; weights flow through a ring in each block's shared memory, requested far ahead of their use, across
// layers (decode_schedule.hpp); blocks pass values through tagged words and meet at a counter once a layer. Every sum is in the class of
// numerics.hpp, so that tokens and logits are those of the other kernels, bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/attention.hpp"
#include "gpu/cuda/decode_schedule.hpp"
#include "gpu/cuda/norm.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t decode_layers_max = 64;
inline constexpr std::uint32_t decode_hidden_max = 3072;
inline constexpr std::uint32_t decode_choices_max = 8;    // experts of a token
inline constexpr std::uint32_t decode_segments_max = 16;  // of K
inline constexpr std::uint32_t decode_sum_tiles = 8;      // row tiles of a block whose sums are under way
inline constexpr std::uint32_t decode_slots_max = 64;
inline constexpr std::uint32_t decode_shared_max = 232448;  // of a block that has a multiprocessor to itself

struct DecodeLayer {
  const std::byte* weights[decode_layer_phases] = {};  // by DecodePhase
  const float* biases[decode_layer_phases] = {};       // likewise; or nullptr
  const float* sinks = nullptr;
  const float* moe_norm = nullptr;
  const float* next_norm = nullptr;
  float moe_epsilon = 0;
  float next_epsilon = 0;
  float swiglu_limit = 0;
  float swiglu_alpha = 0;
  std::uint32_t window = 0;
  LayerKv kv;
};

struct DecodeSizes {
  WeightFormat dense = WeightFormat::bf16;  // of qkv, out and head
  std::uint32_t layers = 0;
  std::uint32_t hidden = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t vocabulary = 0;
};

// A block's part of a phase, as the kernel uses it.
constexpr PhaseShare decode_share(const DecodeSizes& s, DecodePhase phase, std::uint32_t block, std::uint32_t blocks) {
  const std::uint32_t heads = s.query_heads * s.head_dim;
  switch (phase) {
    case phase_qkv:
      return share_of(s.dense, heads + 2 * s.kv_heads * s.head_dim, s.hidden, 1, block, blocks);
    case phase_out:
      return share_of(s.dense, s.hidden, heads, 1, block, blocks);
    case phase_router:
      return share_of(WeightFormat::bf16, s.experts, s.hidden, 1, block, blocks);
    case phase_gate_up:
      return share_of(WeightFormat::mxfp4, 2 * s.intermediate, s.hidden, s.experts_per_token, block, blocks);
    case phase_down:
      return share_of(WeightFormat::mxfp4, s.hidden, s.intermediate, s.experts_per_token, block, blocks);
    default:
      return share_of(s.dense, s.vocabulary, s.hidden, 1, block, blocks);
  }
}

// All phases of a block, with their places in its order of units.
struct DecodeShares {
  PhaseShare phases[decode_phases];
};
constexpr DecodeShares decode_shares(const DecodeSizes& s, std::uint32_t block, std::uint32_t blocks) {
  DecodeShares all;
  std::uint32_t units = 0;
  for (std::uint32_t p = 0; p < decode_phases; ++p) {
    all.phases[p] = decode_share(s, static_cast<DecodePhase>(p), block, blocks);
    all.phases[p].first_unit = p == phase_head ? units * s.layers : units;
    units += p == phase_head ? 0 : all.phases[p].all_units();
  }
  for (PhaseShare& share : all.phases) share.layer_units = units;
  return all;
}

// Words that blocks count in, for each layer; each has 32 bytes to itself.
enum DecodeCounter : std::uint32_t { counter_down, counter_misfit, decode_counters };
inline constexpr std::uint32_t counter_words = 8;  // from one counter to the next
constexpr std::uint32_t decode_sync_words(const DecodeSizes& s) { return s.layers * decode_counters * counter_words; }

// What blocks pass to each other, 64 bits each: a value and the tag of its phase (decode_tag). All blocks meet once a layer, after `down`; so none is
// written again before everybody has read it.
struct DecodeWords {
  unsigned long long* parts = nullptr;     // (2, blocks, decode_segments_max, row_tile) segment sums that another block adds up; phases take turns
  unsigned long long* qkv = nullptr;       // ((query_heads + 2 kv_heads) * head_dim / 2) two bf16
  unsigned long long* residual = nullptr;  // (hidden) float
  unsigned long long* router = nullptr;    // (segments, row tiles of the router * row_tile) float
  unsigned long long* attended = nullptr;  // (query_heads * head_dim / 2) two bf16
  unsigned long long* inner = nullptr;     // (experts_per_token, intermediate / 2) two bf16
};
constexpr std::uint32_t decode_tag(std::uint32_t step, std::uint32_t layer, std::uint32_t phase) {
  return step * 512 + layer * decode_phases + phase + 1;
}
static_assert(decode_layers_max * decode_phases + decode_phases < 512);

// What the kernel keeps in device memory. All zero before the first step; begin_step clears `sync` and the first of `sums`, and counts `step` up.
struct DecodeScratch {
  std::uint32_t* sync = nullptr;        // decode_sync_words
  const std::uint32_t* step = nullptr;  // a number that no step of the last hours had
  unsigned long long* sums[3] = {};     // (hidden) experts' outputs as fixed point, layers take turns
  DecodeWords words;
  const float* residual = nullptr;           // (hidden) before the first layer
  const __nv_bfloat16* normed = nullptr;     // (stride of hidden) likewise
  void* attention = nullptr;                 // attention_scratch_bytes for one token
  std::uint32_t attention_segments_max = 0;  // for which that has room
  float* logits = nullptr;                   // (vocabulary), out
  unsigned long long* counted = nullptr;     // (layers, experts) of RouteTallies; figures of the router are left out
};

enum DecodeStatus : std::uint32_t { decode_ok = 0, decode_timed_out = 1, decode_aborted = 2 };

// Byte offsets into dynamic shared memory; the ring is at its begin.
struct DecodeParts {
  std::uint32_t staged = 0, inputs = 0, residual = 0, sums = 0, end = 0;
};

struct DecodeStepArgs {
  DecodeSizes sizes;
  DecodeScratch scratch;
  StepTokens tokens;
  const float* cosine = nullptr;  // (head_dim / 2)
  const float* sine = nullptr;
  const std::byte* head = nullptr;
  const PhaseShare* shares = nullptr;    // (blocks, decode_phases) decode_shares of each block, on the device
  std::uint32_t slots = 0;               // of the ring
  std::uint32_t attention_stages = 0;    // 1 or 3
  std::uint32_t prefetch_bytes = 0;      // of each block's share of the next layer's qkv that go to L2 while the router works
  std::uint64_t deadline_ns = 0;         // of all waits of a step together
  const std::uint32_t* abort = nullptr;  // not zero: whoever waits gives up. Host memory that the device sees, or nullptr
  std::uint32_t* status = nullptr;       // likewise; DecodeStatus of a step that did not end well, else not written
  unsigned long long* stamps = nullptr;  // (blocks, layers, decode_stamps) clocks of the multiprocessor at phase ends, or nullptr
  DecodeParts parts;                     // set by decode_step
  DecodeLayer layers[decode_layers_max];
};
inline constexpr std::uint32_t decode_stamps = 10;

constexpr std::uint32_t decode_input_bytes(const DecodeSizes& s) {
  const std::uint32_t a = k_padded(s.query_heads * s.head_dim) * 2, h = k_padded(s.hidden) * 2, i = 2 * k_padded(s.intermediate) * 2;
  return a > h ? (a > i ? a : i) : (h > i ? h : i);
}
constexpr std::uint32_t decode_segments(const DecodeSizes& s) {
  const std::uint32_t a = k_segments(s.query_heads * s.head_dim), h = k_segments(s.hidden), i = k_segments(s.intermediate);
  return a > h ? (a > i ? a : i) : (h > i ? h : i);
}
constexpr DecodeParts decode_parts(const DecodeSizes& s, std::uint32_t stages, std::uint32_t slots) {
  DecodeParts p;
  p.staged = (slots * decode_slot_bytes + 127) / 128 * 128;
  p.inputs = p.staged + stages * 32768;
  p.residual = p.inputs + decode_input_bytes(s);
  p.sums = p.residual + (s.hidden * 4 + 15) / 16 * 16;
  p.end = p.sums + decode_sum_tiles * decode_segments(s) * row_tile * 4;
  return p;
}

inline constexpr std::uint32_t decode_static_bytes = 8192;  // room for what is not dynamic
constexpr std::uint32_t decode_slots(const DecodeSizes& s, std::uint32_t stages) {
  const std::uint32_t fixed = decode_static_bytes + decode_parts(s, stages, 0).end;
  const std::uint32_t slots = fixed < decode_shared_max ? (decode_shared_max - fixed) / decode_slot_bytes : 0;
  return slots < decode_slots_max ? slots : decode_slots_max;
}

// nullptr when the kernel takes a model on a device of `blocks` multiprocessors; else what it does not take.
constexpr const char* decode_step_refuses(const DecodeSizes& s, std::uint32_t blocks) {
  if (s.dense == WeightFormat::mxfp4) return "the format of its dense layers";
  if (s.layers == 0 || s.layers > decode_layers_max) return "its number of layers";
  if (!supports_attention({s.query_heads, s.kv_heads, s.head_dim})) return "its attention heads";
  if (!supports_router(s.hidden, s.experts, s.experts_per_token) || s.experts_per_token > decode_choices_max) return "its router";
  if (s.hidden > decode_hidden_max) return "its hidden size";
  if (s.intermediate % 8 != 0) return "its intermediate size";
  if (decode_segments(s) > decode_segments_max || decode_slots(s, 3) < 32) return "the size of its layers";
  // A block keeps two experts' activations.
  const std::uint32_t pieces = s.experts_per_token, items = share_of(WeightFormat::mxfp4, s.hidden, s.intermediate, pieces, 0, 1).all_items;
  if (blocks == 0 || ceil_div(items, blocks) * pieces > items) return "so few multiprocessors";
  return nullptr;
}

// One block a multiprocessor, all at once. args.slots and attention_stages from the above. cudaErrorInvalidValue for what it refuses.
cudaError_t decode_step(const DecodeStepArgs& args, std::uint32_t blocks, cudaStream_t stream);

}  // namespace althing::gpu::cuda
