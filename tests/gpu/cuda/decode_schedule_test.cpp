// How the blocks of the kernel that runs a whole decode step share its weights: pure arithmetic, for the published sizes, for odd ones, and for GPUs
// of other sizes.
#include "gpu/cuda/decode_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace althing::gpu::cuda {
namespace {

constexpr DecodeSizes published(std::uint32_t layers, std::uint32_t experts) {
  return {WeightFormat::bf16, layers, 2880, 64, 8, 64, experts, 4, 2880, 201088};
}
constexpr DecodeSizes small{WeightFormat::fp8, 6, 288, 8, 2, 64, 16, 4, 192, 2288};

// Which unit stands at an index of a phase, as the warps that request weights walk: items by sixteens, the first units of a group before the second.
struct UnitPlace {
  std::uint32_t item;
  std::uint32_t unit;
};
UnitPlace unit_place(const PhaseShare& s, std::uint32_t index) {
  const std::uint32_t group = index / (decode_warps * s.units), within = index % (decode_warps * s.units);
  const std::uint32_t width = std::min(s.items - group * decode_warps, decode_warps);
  return {s.first_item + group * decode_warps + within % width, within / width};
}

std::vector<std::pair<DecodeSizes, std::uint32_t>> cases() {
  return {{published(24, 32), 132}, {published(36, 128), 132}, {published(24, 32), 114}, {small, 132}, {small, 7}};
}

TEST(DecodeSchedule, divisions_are_exact_for_all_that_a_step_divides) {
  for (const std::uint32_t d : {1u, 3u, 8u, 9u, 45u, 60u, 64u, 180u, 345u, 12568u})
    for (std::uint32_t n = 0; n < (1u << 31) / d && n < 200'000; ++n) ASSERT_EQ(divide(n, inverse_of(d)), n / d) << n << " / " << d;
}

// Every item of every phase belongs to one block, runs follow each other, and each row tile has one block that adds it up.
TEST(DecodeSchedule, blocks_share_all_items_evenly) {
  for (const auto& [sizes, blocks] : cases())
    for (std::uint32_t p = 0; p < decode_phases; ++p) {
      std::uint32_t next = 0, owned = 0, most = 0, least = ~0u, all = 0, segments = 1;
      for (std::uint32_t b = 0; b < blocks; ++b) {
        const PhaseShare s = decode_shares(sizes, b, blocks).phases[p];
        ASSERT_EQ(s.first_item, next);
        next += s.items;
        owned += s.owned;
        most = std::max(most, s.items);
        least = std::min(least, s.items);
        all = s.all_items;
        segments = s.segments;
        const PhaseShare after = decode_shares(sizes, std::min(b + 1, blocks - 1), blocks).phases[p];
        ASSERT_EQ(s.next_end, after.first_item + after.items);
      }
      EXPECT_EQ(next, all);
      EXPECT_EQ(owned * segments, all);
      EXPECT_LE(most - least, 1u);
    }
}

// The order of a block's units: each unit of each item once, where the block that requests and the warp that multiplies both expect it.
TEST(DecodeSchedule, units_stand_where_both_sides_look_for_them) {
  for (const auto& [sizes, blocks] : cases())
    for (const std::uint32_t b : {0u, blocks / 2, blocks - 1}) {
      const DecodeShares shares = decode_shares(sizes, b, blocks);
      std::uint32_t position = 0;
      for (std::uint32_t p = 0; p < decode_phases; ++p) {
        const PhaseShare& s = shares.phases[p];
        EXPECT_EQ(s.first_unit, p == phase_head ? position * sizes.layers : position);
        std::set<std::uint32_t> seen;
        for (std::uint32_t i = 0; i < s.items; ++i)
          for (std::uint32_t u = 0; u < s.units; ++u) {
            const std::uint32_t index = unit_index(s, i) + u * group_width(s, i);
            ASSERT_TRUE(seen.insert(index).second);
            const UnitPlace place = unit_place(s, index);
            ASSERT_EQ(place.item, s.first_item + i);
            ASSERT_EQ(place.unit, u);
          }
        EXPECT_EQ(seen.size(), s.all_units());
        EXPECT_EQ(seen.empty() ? 0 : *seen.rbegin() + 1, s.all_units());
        if (p != phase_head) position += s.all_units();
      }
      for (const PhaseShare& s : shares.phases) EXPECT_EQ(s.layer_units, position);
    }
}

TEST(DecodeSchedule, items_cover_the_k_tiles_of_a_row_tile) {
  for (const auto& [sizes, blocks] : cases())
    for (std::uint32_t p = 0; p < decode_phases; ++p) {
      const PhaseShare s = decode_share(sizes, static_cast<DecodePhase>(p), 0, 1);
      std::map<std::uint32_t, std::uint32_t> tiles;
      for (std::uint32_t i = 0; i < std::min(s.items, 3 * s.segments); ++i) {
        const ItemPlace at = item_place(s, i);
        tiles[at.tile] += at.length;
        EXPECT_LE(s.unit_tiles * s.tile_bytes, decode_slot_bytes);
      }
      for (const auto& [tile, length] : tiles) EXPECT_EQ(length, s.tiles_k) << "row tile " << tile;
    }
}

TEST(DecodeSchedule, a_block_fits_a_multiprocessor) {
  for (const auto& [sizes, blocks] : cases())
    for (const std::uint32_t stages : {1u, 3u}) {
      EXPECT_EQ(decode_step_refuses(sizes, blocks), nullptr);
      const std::uint32_t slots = decode_slots(sizes, stages);
      EXPECT_GE(slots, 32u);
      EXPECT_LE(decode_parts(sizes, stages, slots).end + decode_static_bytes, decode_shared_max);
    }
}

// Two tags of one list's life are never the same while both can be seen.
TEST(DecodeSchedule, tags_differ_between_phases_layers_and_steps) {
  std::set<std::uint32_t> tags;
  for (std::uint32_t step = 0xFFFFFFFEu; step != 2; ++step)
    for (std::uint32_t layer = 0; layer <= decode_layers_max; ++layer)
      for (std::uint32_t phase = 0; phase < decode_phases; ++phase) EXPECT_TRUE(tags.insert(decode_tag(step, layer, phase)).second);
}

TEST(DecodeSchedule, refuses_by_name_what_the_kernel_does_not_take) {
  DecodeSizes s = published(24, 32);
  EXPECT_STREQ(decode_step_refuses(s, 0), "so few multiprocessors");
  s.hidden = 4096;
  EXPECT_STREQ(decode_step_refuses(s, 132), "its hidden size");
  s = published(decode_layers_max + 1, 32);
  EXPECT_STREQ(decode_step_refuses(s, 132), "its number of layers");
  s = published(24, 32);
  s.experts_per_token = decode_choices_max + 1;
  EXPECT_STREQ(decode_step_refuses(s, 132), "its router");
  s = published(24, 32);
  s.head_dim = 128;
  EXPECT_STREQ(decode_step_refuses(s, 132), "its attention heads");
  s = published(24, 32);
  s.dense = WeightFormat::mxfp4;
  EXPECT_STREQ(decode_step_refuses(s, 132), "the format of its dense layers");
}

}  // namespace
}  // namespace althing::gpu::cuda
