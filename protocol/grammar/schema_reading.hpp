// A JSON schema's keywords, looked at without building anything: which there are, what they say, and whether two schemas can both hold of one value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::grammar {

using Json = nlohmann::ordered_json;

// The kinds of JSON values, as bits. A number may be an integer.
enum TypeBit : std::uint8_t {
  type_null = 1,
  type_boolean = 2,
  type_integer = 4,
  type_number = 8,
  type_string = 16,
  type_array = 32,
  type_object = 64
};
inline constexpr std::uint8_t type_any = 127;

// A schema in its document.
struct SchemaPlace {
  const Json* schema = nullptr;
  std::string path;  // a JSON pointer behind '#'
};

Error schema_error(ErrorCode code, const std::string& path, const std::string& what);

// Says nothing about which texts are valid.
bool is_annotation(std::string_view keyword);
// Every keyword is known, or an annotation; and those that stand beside what cannot be combined (a reference, alternatives, enum, const) are
// annotations. Errors: unsupported.
Status check_keywords(const SchemaPlace& place);
// What "type" says, else what the other keywords are about, else any. Errors: invalid_argument.
Result<std::uint8_t> types_of(const SchemaPlace& place);
// The schema that a $ref names. Errors: unsupported (another document), invalid_argument (nothing there).
Result<SchemaPlace> resolve(const Json& document, const SchemaPlace& place);
// A count such as minItems. Errors: invalid_argument.
Result<std::uint32_t> count_of(const SchemaPlace& place, const char* keyword, std::uint32_t absent);
std::vector<std::string> required_of(const Json& schema);
// One way to write the value: no white space, keys in their order, the shortest escapes.
std::string canonical(const Json& value);
std::uint8_t type_of_value(const Json& value);

// No value satisfies both; false where that is not plain to see.
bool are_disjoint(const Json& document, const SchemaPlace& a, const SchemaPlace& b, std::uint32_t depth = 0);

}  // namespace althing::protocol::grammar
