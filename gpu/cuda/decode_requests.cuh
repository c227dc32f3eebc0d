// The warps that keep a block's ring of weights full. They walk through the block's order of units (decode_schedule.hpp), a group of units each in
// turn, since one warp could not ask for as much as memory brings, and stop only for a slot that is still in use, and for experts that are not chosen
// yet. While they wait for those they have the next layer's first weights brought to L2.
#pragma once

#include "gpu/cuda/decode_shared.cuh"

namespace althing::gpu::cuda {

__device__ __forceinline__ void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

class DecodeRequests {
 public:
  __device__ __forceinline__ DecodeRequests(const DecodeStepArgs& args, DecodeShared& shared, std::byte* ring)
      : a_(args), shared_(shared), ring_(ring), lane_(threadIdx.x % 32), own_((threadIdx.x - decode_threads) / 32) {}

  // All of a step, unless it fails.
  __device__ __forceinline__ void run() {
    for (std::uint32_t layer = 0; layer < a_.sizes.layers; ++layer)
      for (std::uint32_t phase = 0; phase < decode_layer_phases; ++phase)
        if (!run_phase(layer, phase)) return;
    run_phase(0, phase_head);
  }

 private:
  // Lanes 0 to 15, or all, have an item each; lanes 16 to 31, or all, see to it that the items' biases are near.
  __device__ __forceinline__ bool run_phase(std::uint32_t layer, std::uint32_t phase) {
    const PhaseShare& s = shared_.phases[phase];
    const DecodeLayer& l = a_.layers[layer];
    const bool experts = phase == phase_gate_up || phase == phase_down;
    const std::byte* const weights = phase == phase_head ? a_.head : l.weights[phase];
    const float* const bias = phase == phase_head ? nullptr : l.biases[phase];
    if (phase == phase_out && own_ == 0) prefetch_run(s, weights, a_.slots * s.unit_tiles * s.tile_bytes, s.all_bytes());
    if (phase == phase_qkv && own_ == 0) {
      if (l.sinks != nullptr && lane_ * 8 < a_.sizes.query_heads) prefetch_line(l.sinks + lane_ * 8);
      if (l.biases[phase_router] != nullptr && lane_ * 8 < a_.sizes.experts) prefetch_line(l.biases[phase_router] + lane_ * 8);
    }
    if (phase == phase_gate_up) {
      if (layer + 1 < a_.sizes.layers && own_ == 0)
        prefetch_run(shared_.phases[phase_qkv], a_.layers[layer + 1].weights[phase_qkv], 0, a_.prefetch_bytes);
      while (load_acquire_shared(&shared_.routed) <= layer)
        if (shared_.has_failed()) return false;
    }
    // Where items are single units, one group follows the other without a seam, and all lanes have one.
    const std::uint32_t items = s.items, units = s.units, together = units == 1 ? 32 : decode_warps;
    for (std::uint32_t group = 0; group < items; group += together) {
      const std::uint32_t width = min(together, items - group), own = lane_ % together;
      if (units == 1 && next_++ % request_warps != own_) {
        advance(width);
        continue;
      }
      const ItemPlace item = item_place(s, s.first_item + group + min(own, width - 1));
      const std::uint32_t piece = experts ? divide(item.tile, s.inverse_row_tiles) : 0, tile = item.tile - piece * s.row_tiles;
      const std::uint32_t matrix = experts ? shared_.chosen[piece] : 0;
      const std::byte* from = weights + matrix * s.matrix_bytes + (std::uint64_t(tile) * s.tiles_k + item.segment * s.segment_tiles) * s.tile_bytes;
      if (bias != nullptr && (units == 1 || lane_ >= decode_warps)) {
        prefetch_line(bias + std::uint64_t(matrix) * s.rows + tile * row_tile);
        prefetch_line(bias + std::uint64_t(matrix) * s.rows + tile * row_tile + 8);
      }
      const std::uint32_t unit_tiles = s.unit_tiles, tile_bytes = s.tile_bytes;
      for (std::uint32_t unit = 0, first = 0; unit < units; ++unit, first += unit_tiles, from += unit_tiles * tile_bytes) {
        if (units != 1 && next_++ % request_warps != own_) {
          advance(width);
          continue;
        }
        std::uint32_t slot = slot_ + own, turn = turn_;
        if (slot >= a_.slots) slot -= a_.slots, ++turn;
        bool stop = false;
        if (lane_ < width) {
          // Another warp may not even have asked for what was to be here before.
          while (static_cast<volatile std::uint32_t&>(shared_.requested[slot]) != turn && !(stop = shared_.has_failed())) {
          }
          const std::uint32_t empty = shared_address(&shared_.empty[slot]);
          while (!mbarrier_test(empty, (turn & 1u) ^ 1u) && !(stop = shared_.has_failed())) {
          }
        }
        if (__any_sync(0xFFFFFFFFu, stop)) return false;
        if (lane_ < width) {
          const std::uint32_t bytes = first < item.length ? min(unit_tiles, item.length - first) * tile_bytes : 0;
          const std::uint32_t full = shared_address(&shared_.full[slot]);
          static_cast<volatile std::uint32_t&>(shared_.requested[slot]) = turn + 1;
          if (bytes == 0) {
            mbarrier_arrive(full);
          } else {
            mbarrier_expect(full, bytes);
            copy_expected(shared_address(ring_ + slot * decode_slot_bytes), from, bytes, full, policy_);
          }
        }
        advance(width);
      }
    }
    return true;
  }

  __device__ __forceinline__ void advance(std::uint32_t units) {
    slot_ += units;
    if (slot_ >= a_.slots) slot_ -= a_.slots, ++turn_;
  }

  // Brings bytes [begin, end) of the block's run of one matrix to L2: its items lie one after the other.
  __device__ __forceinline__ void prefetch_run(const PhaseShare& s, const std::byte* weights, std::uint32_t begin, std::uint32_t end) const {
    constexpr std::uint32_t chunk = 8192;
    const ItemPlace first = item_place(s, s.first_item);
    const std::byte* const from = weights + (std::uint64_t(first.tile) * s.tiles_k + first.segment * s.segment_tiles) * s.tile_bytes;
    end = min(end, s.all_bytes());
    for (std::uint32_t at = begin + lane_ * chunk; at < end; at += 32 * chunk) prefetch_bulk(from + at, min(chunk, end - at));
  }

  const DecodeStepArgs& a_;
  DecodeShared& shared_;
  std::byte* const ring_;
  const std::uint32_t lane_, own_;  // own_: which of the warps
  const std::uint64_t policy_ = policy_evict_first();
  std::uint32_t slot_ = 0, turn_ = 0;  // of the next unit
  std::uint32_t next_ = 0;             // group of units
};

}  // namespace althing::gpu::cuda
