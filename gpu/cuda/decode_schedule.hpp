// How the blocks of the kernel that runs a whole decode step share its weights: every linear layer is a list of items, one K segment of one row tile
// each, and every block takes an equal run of the list. A block reads its items' weights in units of a few k tiles, in one fixed order over all
// layers, through a ring of slots in shared memory: the unit at position p of that order goes through slot p % slots. Pure arithmetic, tested without
// a GPU.
//
// Order of a block's units in one layer: items by sixteens, one a warp; inside a group the first units of all its items, then the second ones, ….
#pragma once

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t decode_warps = 16;
inline constexpr std::uint32_t decode_slot_bytes = 2720;  // five tiles of mxfp4

// In the order of a layer; then the head.
enum DecodePhase : std::uint32_t { phase_qkv, phase_out, phase_router, phase_gate_up, phase_down, phase_head };
inline constexpr std::uint32_t decode_layer_phases = 5, decode_phases = 6;

// k tiles in a unit: as many as a slot holds.
constexpr std::uint32_t unit_tiles(WeightFormat format) { return decode_slot_bytes / tile_bytes(format); }

// One phase's part of one block.
struct PhaseShare {
  std::uint32_t tiles_k = 0, segments = 0, segment_tiles = 0;  // of an item
  std::uint32_t rows = 0, row_tiles = 0;                       // of one matrix
  std::uint32_t tile_bytes = 0, unit_tiles = 0, units = 0;     // units: of an item
  std::uint32_t first_item = 0, items = 0;                     // the block's run
  std::uint32_t all_items = 0;                                 // of all blocks
  std::uint32_t first_unit = 0;                                // position in the layer's part of the block's order; for the head, in all of it
  std::uint32_t layer_units = 0;                               // of the block, in one layer
  std::uint32_t next_end = 0;                                  // where the next block's run ends
  std::uint32_t owned = 0;                                     // row tiles whose first segment is in the run: the block adds their sums up
  std::uint32_t inverse_segments = 0, inverse_row_tiles = 0;
  std::uint64_t matrix_bytes = 0;

  constexpr std::uint32_t first_tile() const { return divide(first_item, inverse_segments); }
  constexpr std::uint32_t all_units() const { return items * units; }
  // Of the run, where it is of one matrix. All segments are as long as the first, as a rule; it is enough for hints.
  constexpr std::uint32_t all_bytes() const { return items * segment_tiles * tile_bytes; }
};

// First item of a block's run of `items`.
constexpr std::uint32_t run_begin(std::uint32_t items, std::uint32_t block, std::uint32_t blocks) {
  return static_cast<std::uint32_t>(std::uint64_t{items} * block / blocks);
}

// matrices: of that many equal ones, those that are used one after the other (experts).
constexpr PhaseShare share_of(WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t matrices, std::uint32_t block,
                              std::uint32_t blocks) {
  PhaseShare s;
  s.tiles_k = k_tiles(in);
  s.segments = k_segments(in);
  s.segment_tiles = k_segment_tiles(in);
  s.rows = out;
  s.row_tiles = ceil_div(out, row_tile);
  s.tile_bytes = cuda::tile_bytes(format);
  s.unit_tiles = unit_tiles(format) < s.segment_tiles ? unit_tiles(format) : s.segment_tiles;
  s.units = ceil_div(s.segment_tiles, s.unit_tiles);
  s.all_items = matrices * s.row_tiles * s.segments;
  s.first_item = run_begin(s.all_items, block, blocks);
  s.items = run_begin(s.all_items, block + 1, blocks) - s.first_item;
  s.next_end = run_begin(s.all_items, block + 2 < blocks ? block + 2 : blocks, blocks);
  s.owned = ceil_div(s.first_item + s.items, s.segments) - ceil_div(s.first_item, s.segments);
  s.inverse_segments = inverse_of(s.segments);
  s.inverse_row_tiles = inverse_of(s.row_tiles);
  s.matrix_bytes = std::uint64_t{s.row_tiles} * s.tiles_k * s.tile_bytes;
  return s;
}

// An item's place.
struct ItemPlace {
  std::uint32_t tile;  // row tile, counted over all matrices
  std::uint32_t segment;
  std::uint32_t length;  // k tiles of the segment
};
constexpr ItemPlace item_place(const PhaseShare& s, std::uint32_t item) {
  const std::uint32_t tile = divide(item, s.inverse_segments), segment = item - tile * s.segments, rest = s.tiles_k - segment * s.segment_tiles;
  return {tile, segment, rest < s.segment_tiles ? rest : s.segment_tiles};
}

// Index of unit 0 of the block's `item`-th item; further units of it are `width` indexes further each.
constexpr std::uint32_t group_width(const PhaseShare& s, std::uint32_t item) {
  const std::uint32_t left = s.items - item / decode_warps * decode_warps;
  return left < decode_warps ? left : decode_warps;
}
constexpr std::uint32_t unit_index(const PhaseShare& s, std::uint32_t item) {
  return item / decode_warps * decode_warps * s.units + item % decode_warps;
}

}  // namespace althing::gpu::cuda
