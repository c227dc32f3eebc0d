// JSON text that came from outside, to a value whose order of keys is kept. Time is linear in the text (n log n in the members of one object), depth
// is bounded before anything recursive sees the value, and a key that appears twice in one object is refused: two readers could disagree about it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::wire {

inline constexpr std::size_t json_depth_max = 64;         // arrays and objects in each other, in a whole frame
inline constexpr std::size_t json_schema_depth_max = 48;  // in the JSON schema of one function

// Errors: corrupt (not JSON, not UTF-8, deeper than depth_max, a number that fits no 64-bit type, a key twice).
Result<nlohmann::ordered_json> parse_json(std::string_view text, std::size_t depth_max);
// The text in quotes, byte for byte as nlohmann writes it (invalid UTF-8 replaced), for those who write JSON by hand because it is written for every
// token.
void append_quoted(std::string& to, std::string_view text);
// Arrays and objects in each other: 0 for a number or a text, 1 for [].
std::size_t depth_of(const nlohmann::ordered_json& value);

}  // namespace althing::protocol::wire
