// A JSON schema as the TypeScript-like type that gpt-oss models saw in training, with the reference renderer's quirks: what differs by one
// space is another prompt. Constraints (minimum, pattern, …) are left out on purpose.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace althing::protocol::harmony {

// Levels of nesting that a schema may have; rendering recurses once a level.
inline constexpr int schema_depth_max = 128;
// Whether arrays and objects are nested at most `levels` deep. Looks no deeper than that, so it is safe for any input.
bool nesting_at_most(const nlohmann::ordered_json& json, int levels);

// REQUIRES: nesting_at_most(schema, schema_depth_max).
std::string type_of_schema(const nlohmann::ordered_json& schema);

// JSON without spaces, numbers as serde_json writes them (1e20 and 1.0, not 1e+20 and 1). REQUIRES: as above.
std::string compact_json(const nlohmann::ordered_json& json);

}  // namespace althing::protocol::harmony
