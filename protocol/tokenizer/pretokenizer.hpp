// Where the o200k pattern cuts text into pieces; merging never crosses a cut. Scanned by hand: no regular expression engine, no recursion,
// no character looked at more than a fixed number of times, so that a megabyte of one letter costs what a megabyte of prose does.
#pragma once

#include <cstddef>
#include <string_view>

namespace althing::protocol {

// The pattern as tokenizer.json files spell it; the scanner is this pattern and no other.
extern const std::string_view o200k_pattern;

// The end of the piece that begins at `begin`, more than `begin`.
// REQUIRES: text is valid UTF-8, begin < text.size() and a piece (or the text) begins there.
std::size_t piece_end(std::string_view text, std::size_t begin);

}  // namespace althing::protocol
