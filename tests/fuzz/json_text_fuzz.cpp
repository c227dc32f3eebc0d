// Any bytes as JSON text. What is taken must be what another parser takes it for, as deep as it was said to be, and the same when it is written and
// read again; what is refused says why.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "protocol/harmony/schema_type.hpp"
#include "protocol/wire/json_text.hpp"
#include "tests/fuzz/small_format.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace althing::protocol;
  using althing::fuzz::require;
  using Json = nlohmann::ordered_json;
  if (size == 0 || size > 16384) return 0;
  const std::size_t depth = 1 + data[0] % wire::json_depth_max;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto read = wire::parse_json(text, depth);
  if (!read) {
    require(read.error().code == althing::ErrorCode::corrupt && !read.error().message.empty(), "a refusal says why");
    return 0;
  }
  require(wire::depth_of(*read) <= depth, "no deeper than was allowed");
  require(Json::parse(text, nullptr, false) == *read, "two parsers agree");
  const auto again = wire::parse_json(read->dump(), depth);
  require(again && *again == *read, "what was written is read");
  // As a schema, which the renderer writes in two other forms.
  require(harmony::nesting_at_most(*read, harmony::schema_depth_max) && !harmony::type_of_schema(*read).empty(), "a schema has a type");
  const auto compact = wire::parse_json(harmony::compact_json(*read), depth);
  require(compact && *compact == *read, "compact JSON is the same");
  return 0;
}
