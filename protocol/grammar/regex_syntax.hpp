// Regular expressions, read: the part of ECMA-262's syntax that describes a set of texts and nothing else. docs/structured-output.md lists it.
// Groups do not capture, and whether a repetition is greedy changes nothing.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocol/grammar/code_points.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::grammar {

inline constexpr std::size_t regex_bytes_max = 16 * 1024;
inline constexpr std::uint32_t regex_groups_max = 100;  // open at a time
inline constexpr std::uint32_t regex_repeats_max = 10'000;
inline constexpr std::uint32_t unbounded = 0xFFFF'FFFFu;

struct RegexNode {
  enum class Kind : std::uint8_t { nothing, characters, sequence, choice, repeat, at_start, at_end };
  Kind kind = Kind::nothing;
  CodePointSet set;                   // of characters
  std::vector<std::uint32_t> parts;   // of a sequence or choice; one of a repeat
  std::uint32_t least = 0, most = 0;  // of a repeat; most may be `unbounded`
};

struct Regex {
  std::vector<RegexNode> nodes;
  std::uint32_t root = 0;
};

// Errors: invalid_argument (not a regular expression; where), unsupported (a construct that is left out, by name), too_large (over the bounds above).
Result<Regex> parse_regex(std::string_view text);

}  // namespace althing::protocol::grammar
