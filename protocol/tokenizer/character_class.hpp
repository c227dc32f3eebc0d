// What the o200k pre-tokenizer needs to know of a character. The tables are generated (unicode_table.cpp, one pinned Unicode version) and
// never the platform's, so that the same text gives the same tokens everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace althing::protocol {

// Bits; a modifier letter, for one, is in both runs. A character of no class is punctuation, a symbol, a control or unassigned.
namespace character_class {
inline constexpr std::uint8_t upper_run = 1;  // Lu, Lt, Lm, Lo, M: may stand in the first run of a word
inline constexpr std::uint8_t lower_run = 2;  // Ll, Lm, Lo, M: may stand in the second
inline constexpr std::uint8_t letter = 4;     // L
inline constexpr std::uint8_t number = 8;     // N
inline constexpr std::uint8_t space = 16;     // White_Space
}  // namespace character_class

inline constexpr std::size_t unicode_block_size = 128;
inline constexpr std::size_t unicode_block_count = 7173;
inline constexpr std::size_t unicode_class_count = 29440;
extern const std::uint8_t unicode_block_of[unicode_block_count];
extern const std::uint8_t unicode_class_of[unicode_class_count];

inline std::uint8_t class_of(char32_t code_point) {
  const std::size_t block = code_point / unicode_block_size;
  if (block >= unicode_block_count) return 0;
  return unicode_class_of[unicode_block_of[block] * unicode_block_size + code_point % unicode_block_size];
}

}  // namespace althing::protocol
