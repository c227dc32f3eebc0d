// How the warps of a block work off its items of a phase (decode_step.hpp). A warp multiplies its item's segment by the one column there is and
// leaves the 16 sums in shared memory; the last of a row tile's warps adds them in order and stores. Where a run ends inside a row tile, the block
// that has the tile's first segment does it: the other one begins with its part, and has left those sums in device memory long before.
#pragma once

#include "gpu/cuda/decode_shared.cuh"
#include "gpu/cuda/decode_wait.cuh"
#include "gpu/cuda/elementwise.cuh"
#include "gpu/cuda/weight_tile.cuh"

namespace althing::gpu::cuda {

template <WeightFormat Format>
__device__ __forceinline__ void multiply_tile(float (&chain)[4], const std::byte* tile, const std::byte* input) {
  WeightTile<Format> weights;
  weights.load_shared(tile, threadIdx.x % 32);
  const uint4 x[2] = {load_shared_16(input), load_shared_16(input + 64)};
  std::uint32_t operand[4][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) weights.operand(s, operand[s]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    mma_bf16(chain, operand[2 * half], x[half].x, x[half].y);
    mma_bf16(chain, operand[2 * half + 1], x[half].z, x[half].w);
  }
}

// The unit's weights, when they have come. A warp may be so far ahead of another that the slot's turn before this one has not even been used: the
// barrier, which knows only odd from even, would take that for this one's end. In a step that has failed it may never come.
__device__ __forceinline__ void await_unit(DecodeShared& shared, std::uint32_t turn, std::uint32_t slot) {
  while (static_cast<volatile std::uint32_t&>(shared.requested[slot]) != turn + 1)
    if (shared.has_failed()) return;
  mbarrier_wait(shared_address(&shared.full[slot]), turn & 1u);
}

// The chain of one item: sums of row g in [0], of row g + 8 in [2], the same in all columns. position: of its first unit; width: to the next.
template <WeightFormat Format>
__device__ __forceinline__ void multiply_item(float (&chain)[4], DecodeShared& shared, const std::byte* ring, std::uint32_t slots,
                                              const PhaseShare& s, const ItemPlace& item, const std::byte* input, std::uint32_t position,
                                              std::uint32_t width) {
  constexpr std::uint32_t tiles = unit_tiles(Format);
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t turn = position / slots, slot = position - turn * slots;
  input += item.segment * s.segment_tiles * (k_tile * 2) + lane % 4 * 16;
#pragma unroll 1
  for (std::uint32_t left = item.length, unit = 0; unit < s.units; ++unit) {
    await_unit(shared, turn, slot);
    const std::byte* const from = ring + slot * decode_slot_bytes;
    const std::uint32_t count = min(s.unit_tiles, left);
    left -= count;
    if (count == tiles) {
#pragma unroll
      for (std::uint32_t t = 0; t < tiles; ++t) multiply_tile<Format>(chain, from + t * tile_bytes(Format), input + t * (k_tile * 2));
    } else {
#pragma unroll 1
      for (std::uint32_t t = 0; t < count; ++t) multiply_tile<Format>(chain, from + t * tile_bytes(Format), input + t * (k_tile * 2));
    }
    input += s.unit_tiles * (k_tile * 2);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.empty[slot]));
    slot += width;
    if (slot >= slots) slot -= slots, ++turn;
  }
}

// What a block's multiplying threads do in a phase, and what they need for it.
template <WeightFormat Dense>
class DecodeItems {
 protected:
  __device__ __forceinline__ DecodeItems(const DecodeStepArgs& args, DecodeShared& shared)
      : a_(args), shared_(shared), memory_{args}, warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run_items(std::uint32_t layer, std::uint32_t phase) {
    const PhaseShare& s = shared_.phases[phase];
    const bool experts = phase == phase_gate_up || phase == phase_down;
    const std::uint32_t items = s.items, segments = s.segments, first_item = s.first_item;
    const std::uint32_t first_tile = s.first_tile(), first_piece = divide(first_tile, s.inverse_row_tiles);
    const std::uint32_t position = (phase == phase_head ? 0 : layer * s.layer_units) + s.first_unit;
    // Where items are single units, warps take them as they come: adding up takes time, and would fall to the same warps again and again.
    const bool taken = s.units == 1;
    const auto take = [&](std::uint32_t last) {
      if (!taken) return last + decode_warps;
      std::uint32_t number = 0;
      if (lane_ == 0) number = count_up(&shared_.next) - 1 + decode_warps;
      return __shfl_sync(0xFFFFFFFFu, number, 0);
    };
#pragma unroll 1
    for (std::uint32_t i = warp_; i < items; i = take(i)) {
      const ItemPlace item = item_place(s, first_item + i);
      const std::uint32_t piece = experts ? divide(item.tile, s.inverse_row_tiles) : 0;
      // All experts read the token; then each pair's own activations are read.
      const std::byte* const input = memory_.inputs() + (phase == phase_down ? (piece - first_piece) * (k_padded(a_.sizes.intermediate) * 2) : 0);
      float chain[4] = {};
      if (experts) {
        multiply_item<WeightFormat::mxfp4>(chain, shared_, memory_.ring(), a_.slots, s, item, input, position + unit_index(s, i), group_width(s, i));
      } else {
        multiply_item<Dense>(chain, shared_, memory_.ring(), a_.slots, s, item, input, position + unit_index(s, i), group_width(s, i));
      }
      const std::uint32_t number = item.tile - first_tile, place = number % decode_sum_tiles;
      float* const sums = memory_.sums() + place * segments * row_tile;
      // Whose place it was must be done with it.
      if (number >= decode_sum_tiles)
        while (load_acquire_shared(&shared_.finished[place]) + decode_sum_tiles < number + 1 && !shared_.has_failed()) {
        }
      if (lane_ % 4 == 0) {
        sums[item.segment * row_tile + lane_ / 4] = chain[0];
        sums[item.segment * row_tile + lane_ / 4 + 8] = chain[2];
      }
      // The segments of this row tile that are the block's.
      const std::uint32_t zero = item.tile * segments;
      const std::uint32_t begin = first_item > zero ? first_item - zero : 0, end = min(segments, first_item + items - zero);
      std::uint32_t arrived = 0;
      __syncwarp();
      if (lane_ == 0) arrived = count_up(&shared_.arrived[place]);
      if (__shfl_sync(0xFFFFFFFFu, arrived, 0) != end - begin) continue;
      if (begin != 0) {
        hand_over(sums, begin, end, layer, phase);
      } else {
        add_up(layer, phase, sums, end, piece, item.tile - piece * s.row_tiles, zero);
      }
      __syncwarp();
      if (lane_ == 0) {
        shared_.arrived[place] = 0;
        store_release_shared(&shared_.finished[place], number + 1);
      }
    }
  }

  // Segments [begin, end) of a row tile that an earlier block adds up.
  __device__ __forceinline__ void hand_over(const float* sums, std::uint32_t begin, std::uint32_t end, std::uint32_t layer, std::uint32_t phase) {
    unsigned long long* const to = parts_of(blockIdx.x, phase);
    for (std::uint32_t i = begin * row_tile + lane_; i < end * row_tile; i += 32) store_tagged(to + i, __float_as_uint(sums[i]), tag(layer, phase));
  }
  __device__ __forceinline__ unsigned long long* parts_of(std::uint32_t block, std::uint32_t phase) const {
    const std::uint32_t turn = phase == phase_out || phase == phase_down ? 1 : 0;
    return a_.scratch.words.parts + std::uint64_t(turn * gridDim.x + block) * decode_segments_max * row_tile;
  }
  __device__ __forceinline__ std::uint32_t tag(std::uint32_t layer, std::uint32_t phase) const { return decode_tag(shared_.step, layer, phase); }

  // The value of a tagged word that was seen as `seen`, when it is there.
  __device__ __forceinline__ std::uint32_t value_of(const unsigned long long* word, uint2 seen, std::uint32_t expected) {
    return wait_tagged(word, seen, expected, shared_.limits, shared_.failed);
  }

  // A look at some words of a list from time to time, by one warp, before all threads ask for all of it: looks of all threads would be in the way of
  // whoever is late.
  __device__ __forceinline__ void probe(const unsigned long long* words, std::uint32_t count, std::uint32_t expected) {
    if (warp_ != 0 || count == 0) return;
    const unsigned long long* const word = words + (2 * lane_ + 1) * count / 64;
    value_of(word, load_tagged(word), expected);
  }

  // Sums of a row tile's rows, segments ascending, and what becomes of them. The first `end` segments are the block's, others those of the blocks
  // that follow. zero: the row tile's first item.
  __device__ __forceinline__ void add_up(std::uint32_t layer, std::uint32_t phase, float* sums, std::uint32_t end, std::uint32_t piece,
                                         std::uint32_t tile, std::uint32_t zero) {
    const std::uint32_t j = lane_ % 8, segments = shared_.phases[phase].segments, own_tag = tag(layer, phase);
    const DecodeLayer& l = a_.layers[layer];
    const DecodeSizes& z = a_.sizes;
    // Where rows j and j + 8 of the tile stand in the bias: head by head with both sides of a rotation, gate beside up, or as they are.
    const bool halves = phase == phase_qkv, pairs = phase == phase_gate_up;
    const std::uint32_t head = tile / (attention_head_dim / row_tile), d = tile % (attention_head_dim / row_tile) * 8 + j;
    const std::uint32_t row = halves ? head * attention_head_dim + d : tile * row_tile + (pairs ? 2 * j : j), apart = halves ? 32 : pairs ? 1 : 8;
    const std::uint32_t rows = shared_.phases[phase].rows;
    const float* const bias = phase == phase_head ? nullptr : l.biases[phase];
    const std::uint64_t at = std::uint64_t(pairs || phase == phase_down ? shared_.chosen[piece] : 0) * rows + row;
    const float low_bias = bias != nullptr && row < rows ? bias[at] : -0.0F,
                high_bias = bias != nullptr && row + apart < rows ? bias[at + apart] : -0.0F;
#pragma unroll 1
    for (std::uint32_t block = blockIdx.x + 1, segment = end; segment < segments; ++block) {
      const PhaseShare& other = a_.shares[block * decode_phases + phase];
      const std::uint32_t theirs =
          min(block == blockIdx.x + 1 ? shared_.phases[phase].next_end - zero : other.first_item + other.items - zero, segments);
      const unsigned long long* const from = parts_of(block, phase);
#pragma unroll 1
      for (std::uint32_t i = segment * row_tile + lane_; i < theirs * row_tile; i += 128) {
        uint2 seen[4];
#pragma unroll
        for (std::uint32_t k = 0; k < 4; ++k)
          if (i + 32 * k < theirs * row_tile) seen[k] = load_tagged(from + i + 32 * k);
#pragma unroll
        for (std::uint32_t k = 0; k < 4; ++k)
          if (i + 32 * k < theirs * row_tile) sums[i + 32 * k] = __uint_as_float(value_of(from + i + 32 * k, seen[k], own_tag));
      }
      segment = theirs;
    }
    __syncwarp();
    float low = sums[j], high = sums[j + 8];
#pragma unroll 4
    for (std::uint32_t segment = 1; segment < segments; ++segment) low += sums[segment * row_tile + j], high += sums[segment * row_tile + j + 8];
    low += low_bias;
    high += high_bias;
    const bool first = lane_ < 8, even = first && j % 2 == 0;
    if (phase == phase_qkv) {
      if (head < z.query_heads + z.kv_heads) {
        const float2 turned = rotate(low, high, shared_.cosine[d], shared_.sine[d]);
        low = turned.x, high = turned.y;
      }
      const std::uint32_t lows = pack_bf16(low, __shfl_down_sync(0xFFFFFFFFu, low, 1)),
                          highs = pack_bf16(high, __shfl_down_sync(0xFFFFFFFFu, high, 1));
      if (!even) return;
      unsigned long long* const word = a_.scratch.words.qkv + (head * attention_head_dim + d) / 2;
      store_tagged(word, lows, own_tag);
      store_tagged(word + attention_head_dim / 4, highs, own_tag);
      if (head < z.query_heads || shared_.kv_slot < 0) return;
      const std::uint32_t value = head < z.query_heads + z.kv_heads ? 0 : 1;
      auto* const cached = reinterpret_cast<std::uint32_t*>(l.kv.key_at(shared_.kv_slot, (head - z.query_heads) % z.kv_heads) +
                                                            value * (l.kv.tokens_per_page * kv_row_bytes)) +
                           d / 2;
      cached[0] = lows;
      cached[attention_head_dim / 4] = highs;
      return;
    }
    if (phase == phase_head) {
      if (first && row < rows) a_.scratch.logits[row] = low;
      if (first && row + 8 < rows) a_.scratch.logits[row + 8] = high;
      return;
    }
    if (phase == phase_out) {
      if (first && row < rows) store_tagged(a_.scratch.words.residual + row, __float_as_uint(memory_.residual()[row] + low), own_tag);
      if (first && row + 8 < rows) store_tagged(a_.scratch.words.residual + row + 8, __float_as_uint(memory_.residual()[row + 8] + high), own_tag);
      return;
    }
    if (phase == phase_gate_up) {
      const float own = swiglu(low, high, l.swiglu_limit, l.swiglu_alpha), other = __shfl_down_sync(0xFFFFFFFFu, own, 1);
      if (even && row < rows) store_tagged(a_.scratch.words.inner + (piece * rows + row) / 4, pack_bf16(own, other), own_tag);
      return;
    }
    if (first) {
      if (row < rows) add_expert(layer, row, shared_.weights[piece], low);
      if (row + 8 < rows) add_expert(layer, row + 8, shared_.weights[piece], high);
    }
    __syncwarp();
    if (lane_ == 0 && count_down(&shared_.remaining) == 0) add_release(counter_of(layer, counter_down));
  }
  __device__ __forceinline__ void add_expert(std::uint32_t layer, std::uint32_t row, float weight, float output) {
    const FixedPointAddend addend = fixed_point_addend(weight, output);
    if (!addend.fits) *counter_of(layer, counter_misfit) = 1;
    atomicAdd(a_.scratch.sums[layer % 3] + row, static_cast<unsigned long long>(addend.value));
  }

  __device__ __forceinline__ std::uint32_t* counter_of(std::uint32_t layer, DecodeCounter which) const {
    return a_.scratch.sync + (layer * decode_counters + which) * counter_words;
  }

  const DecodeStepArgs& a_;
  DecodeShared& shared_;
  const DecodeMemory memory_;
  const std::uint32_t warp_, lane_;
};

}  // namespace althing::gpu::cuda
