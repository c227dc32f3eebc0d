// UTF-8 taken apart, one character at a time, with the rule of the Unicode standard for what is not one: every maximal subpart of an
// ill-formed sequence (the longest beginning of some valid character, else one byte) stands for one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace althing::protocol {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

enum class Utf8Kind : std::uint8_t {
  valid,       // a whole character
  invalid,     // a maximal subpart that can never become a character
  incomplete,  // the text ends inside what may still become a character
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::valid;
  std::size_t length = 0;   // bytes, at least 1
  char32_t code_point = 0;  // when valid
};

// REQUIRES: position < text.size().
Utf8Step utf8_step(std::string_view text, std::size_t position);

// How many bytes from the start are whole, valid characters.
std::size_t valid_utf8_prefix(std::string_view text);

// `text` itself when it is valid UTF-8; else a copy in `storage` with every maximal subpart replaced.
std::string_view valid_utf8(std::string_view text, std::string& storage);

// Moves what is certain from the front of `pending` to the result, which is valid UTF-8; an incomplete tail (at most 3 bytes) stays.
std::string take_certain_utf8(std::string& pending);

}  // namespace althing::protocol
