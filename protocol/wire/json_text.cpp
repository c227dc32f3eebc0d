// JSON text to a value, by way of simdjson: it bounds the depth, validates UTF-8 and numbers, and is linear. nlohmann's own parser is not: for
// ordered objects it looks each key up in a list of all earlier ones, which a client could use to keep the server busy for hours with one frame.
// The value is built by appending, and keys that appear twice are found by sorting.
#include "protocol/wire/json_text.hpp"

#include <simdjson.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace althing::protocol::wire {
namespace {

using nlohmann::ordered_json;
namespace dom = simdjson::dom;

Error not_json(const std::string& why) { return Error{ErrorCode::corrupt, "the JSON cannot be read: " + why, ""}; }

// An ordered_json object is a vector of pairs, and inserting by key would search it each time. Members are appended instead, and keys that appear
// twice are found by sorting.
std::optional<std::string> repeated_key(const ordered_json::object_t& members) {
  std::vector<std::string_view> keys;
  keys.reserve(members.size());
  for (const auto& [key, value] : members) keys.emplace_back(key);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return std::nullopt;
  return std::string(twice->substr(0, 64));
}

struct Depth {
  std::size_t left, max;
  Depth inner() const { return {left - 1, max}; }
};

Error too_deep(std::size_t depth_max) { return not_json("it nests deeper than " + std::to_string(depth_max) + " arrays and objects; flatten it"); }

// Recursion is bounded twice: simdjson has refused deeper texts, except that it does not count an empty array or object.
ordered_json convert(const dom::element& element, Depth depth, std::optional<Error>& error) {
  if (depth.left == 0 && (element.is_array() || element.is_object())) {
    if (!error) error = too_deep(depth.max);
    return nullptr;
  }
  switch (element.type()) {
    case dom::element_type::ARRAY: {
      ordered_json array = ordered_json::array();
      auto& items = array.get_ref<ordered_json::array_t&>();
      const dom::array source = element.get_array().value_unsafe();
      items.reserve(source.size());
      for (const dom::element item : source) items.push_back(convert(item, depth.inner(), error));
      return array;
    }
    case dom::element_type::OBJECT: {
      ordered_json object = ordered_json::object();
      auto& members = object.get_ref<ordered_json::object_t&>();
      const dom::object source = element.get_object().value_unsafe();
      members.reserve(source.size());  // growing would copy the members: their keys are const
      for (const dom::key_value_pair member : source) members.emplace_back(std::string(member.key), convert(member.value, depth.inner(), error));
      if (auto key = repeated_key(members); key && !error)
        error = not_json("the key \"" + *key + "\" appears twice in one object; send each key once");
      return object;
    }
    case dom::element_type::STRING:
      return std::string(element.get_string().value_unsafe());
    case dom::element_type::INT64:
      return element.get_int64().value_unsafe();
    case dom::element_type::UINT64:
      return element.get_uint64().value_unsafe();
    case dom::element_type::DOUBLE:
      return element.get_double().value_unsafe();
    case dom::element_type::BOOL:
      return element.get_bool().value_unsafe();
    case dom::element_type::NULL_VALUE:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

Result<ordered_json> parse_json(std::string_view text, std::size_t depth_max) {
  dom::parser parser;
  if (const auto failure = parser.allocate(text.size(), depth_max + 1)) return not_json(simdjson::error_message(failure));
  const auto parsed = parser.parse(text.data(), text.size());
  if (parsed.error() == simdjson::DEPTH_ERROR) return too_deep(depth_max);
  if (parsed.error()) return not_json(simdjson::error_message(parsed.error()));
  std::optional<Error> error;
  ordered_json value = convert(parsed.value_unsafe(), Depth{depth_max, depth_max}, error);
  if (error) return std::move(*error);
  return value;
}

std::size_t depth_of(const ordered_json& value) {
  if (!value.is_structured()) return 0;
  std::size_t deepest = 0;
  for (const auto& item : value) deepest = std::max(deepest, depth_of(item));
  return deepest + 1;
}

void append_quoted(std::string& to, std::string_view text) {
  // Printable ASCII, and of what must be escaped only what is common in texts, is copied; the rest is left to the library.
  const auto plain = [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n'; };
  if (!std::all_of(text.begin(), text.end(), plain)) {
    to += nlohmann::ordered_json(text).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return;
  }
  to += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\' || c == '\n') to += '\\';
    to += c == '\n' ? 'n' : c;
  }
  to += '"';
}

}  // namespace althing::protocol::wire
