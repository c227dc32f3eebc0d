// See the header.
#include "protocol/grammar/schema_reading.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/grammar/code_points.hpp"

namespace althing::protocol::grammar {
namespace {

constexpr std::array<std::string_view, 15> annotations = {"$schema",     "$id",      "$comment",    "$anchor",         "$defs",
                                                          "definitions", "title",    "description", "default",         "examples",
                                                          "deprecated",  "readOnly", "writeOnly",   "contentEncoding", "contentMediaType"};
constexpr std::array<std::string_view, 28> known = {"type",
                                                    "enum",
                                                    "const",
                                                    "$ref",
                                                    "anyOf",
                                                    "oneOf",
                                                    "allOf",
                                                    "properties",
                                                    "required",
                                                    "additionalProperties",
                                                    "items",
                                                    "prefixItems",
                                                    "minItems",
                                                    "maxItems",
                                                    "minLength",
                                                    "maxLength",
                                                    "pattern",
                                                    "format",
                                                    "minimum",
                                                    "maximum",
                                                    "exclusiveMinimum",
                                                    "exclusiveMaximum",
                                                    "uniqueItems",
                                                    "minProperties",
                                                    "maxProperties",
                                                    "multipleOf",
                                                    "discriminator",
                                                    "nullable"};

struct TypeName {
  std::string_view name;
  std::uint8_t bits;
};
constexpr std::array<TypeName, 7> type_names = {{{"null", type_null},
                                                 {"boolean", type_boolean},
                                                 {"integer", type_integer},
                                                 {"number", type_number | type_integer},
                                                 {"string", type_string},
                                                 {"array", type_array},
                                                 {"object", type_object}}};
struct Concern {
  std::string_view keyword;
  std::uint8_t bits;
};
constexpr std::array<Concern, 15> concerns = {{{"properties", type_object},
                                               {"required", type_object},
                                               {"additionalProperties", type_object},
                                               {"items", type_array},
                                               {"prefixItems", type_array},
                                               {"minItems", type_array},
                                               {"maxItems", type_array},
                                               {"minLength", type_string},
                                               {"maxLength", type_string},
                                               {"pattern", type_string},
                                               {"format", type_string},
                                               {"minimum", type_number | type_integer},
                                               {"maximum", type_number | type_integer},
                                               {"exclusiveMinimum", type_number | type_integer},
                                               {"exclusiveMaximum", type_number | type_integer}}};

// Of these a schema has at most one, and beside it annotations only.
constexpr std::array<std::string_view, 6> alone = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"};

// Keywords that are known and yet cannot be followed, but for values that say nothing.
std::optional<std::string> unfollowed(const std::string& keyword, const Json& value) {
  if (keyword == "uniqueItems" && value == Json(false)) return std::nullopt;
  if (keyword == "minProperties" && value == Json(0)) return std::nullopt;
  if (keyword == "nullable" && value == Json(false)) return std::nullopt;
  if (keyword == "nullable") return "nullable is no keyword of JSON schemas; add \"null\" to the type instead";
  if (keyword == "uniqueItems" || keyword == "minProperties" || keyword == "maxProperties" || keyword == "multipleOf")
    return keyword + " is not supported; leave it out and check it yourself";
  return std::nullopt;
}

const Json* member(const Json& schema, const char* name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

// The values of enum or const; none where there is neither.
std::optional<std::vector<Json>> values_of(const Json& schema) {
  if (const Json* value = member(schema, "const")) return std::vector<Json>{*value};
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) return std::vector<Json>(values->begin(), values->end());
  return std::nullopt;
}

// The order of members says nothing.
bool equal(const Json& a, const Json& b) {
  return a.is_structured() && b.is_structured() ? nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump()) : a == b;
}

bool share_no_type(std::uint8_t a, std::uint8_t b) { return (a & b) == 0; }

bool no_value_of(const std::vector<Json>& values, std::uint8_t types) {
  return std::all_of(values.begin(), values.end(), [&](const Json& v) { return share_no_type(type_of_value(v), types); });
}

// A member that one of them must have, and that cannot satisfy the other.
bool have_disjoint_members(const Json& document, const SchemaPlace& a, const SchemaPlace& b, std::uint32_t depth) {
  const Json* a_members = member(*a.schema, "properties");
  const Json* b_members = member(*b.schema, "properties");
  const Json* b_others = member(*b.schema, "additionalProperties");
  for (const std::string& name : required_of(*a.schema)) {
    const Json* in_a = a_members == nullptr ? nullptr : member(*a_members, name.c_str());
    const Json* in_b = b_members == nullptr ? nullptr : member(*b_members, name.c_str());
    if (in_b == nullptr && b_others != nullptr && *b_others == Json(false)) return true;
    if (in_a == nullptr || in_b == nullptr) continue;
    if (are_disjoint(document, {in_a, ""}, {in_b, ""}, depth + 1)) return true;
  }
  return false;
}

}  // namespace

Error schema_error(ErrorCode code, const std::string& path, const std::string& what) {
  return Error{code, "the JSON schema at #" + path + ": " + what, "grammar"};
}

bool is_annotation(std::string_view keyword) {
  return std::find(annotations.begin(), annotations.end(), keyword) != annotations.end() || keyword.starts_with("x-") || keyword == "discriminator";
}

Status check_keywords(const SchemaPlace& place) {
  std::string single;
  for (const auto& [keyword, value] : place.schema->items()) {
    if (is_annotation(keyword)) continue;
    if (std::find(known.begin(), known.end(), keyword) == known.end())
      return schema_error(ErrorCode::unsupported, place.path,
                          "the keyword \"" + keyword.substr(0, 60) + "\" is not supported; leave it out, or say it otherwise");
    if (const auto why = unfollowed(keyword, value)) return schema_error(ErrorCode::unsupported, place.path, *why);
    if (std::find(alone.begin(), alone.end(), keyword) != alone.end()) single = keyword;
  }
  if (single.empty()) return Ok{};
  for (const auto& [keyword, value] : place.schema->items()) {
    if (is_annotation(keyword) || keyword == single || unfollowed(keyword, value)) continue;
    const bool is_typed_value = keyword == "type" && (single == "enum" || single == "const");
    if (is_typed_value || keyword == "uniqueItems" || keyword == "minProperties" || keyword == "nullable") continue;
    return schema_error(ErrorCode::unsupported, place.path,
                        "\"" + keyword + "\" beside \"" + single + "\" is not supported; put all conditions into one of them");
  }
  return Ok{};
}

Result<std::uint8_t> types_of(const SchemaPlace& place) {
  const Json* type = member(*place.schema, "type");
  std::uint8_t bits = 0;
  if (type == nullptr) {
    for (const Concern& concern : concerns)
      if (place.schema->contains(concern.keyword)) bits |= concern.bits;
    return bits == 0 ? type_any : bits;
  }
  const auto one = [&](const Json& name) {
    for (const TypeName& entry : type_names)
      if (name.is_string() && name.get_ref<const std::string&>() == entry.name) return bits |= entry.bits, true;
    return false;
  };
  const bool understood = type->is_array() ? !type->empty() && std::all_of(type->begin(), type->end(), one) : one(*type);
  if (!understood)
    return schema_error(
        ErrorCode::invalid_argument, place.path,
        "\"type\" is " + type->dump().substr(0, 60) + "; use null, boolean, integer, number, string, array, object, or a list of these");
  return bits;
}

Result<SchemaPlace> resolve(const Json& document, const SchemaPlace& place) {
  const Json& reference = place.schema->at("$ref");
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with("#"))
    return schema_error(ErrorCode::unsupported, place.path,
                        "$ref is " + reference.dump().substr(0, 60) + "; only \"#/…\", into the same schema, is supported");
  std::string path = reference.get<std::string>().substr(1);
  // Fragments of URIs may be percent-encoded.
  std::string pointer;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto digit = [&](std::size_t at) {
      return at < path.size() ? std::string_view("0123456789ABCDEF0123456789abcdef").find(path[at]) % 16 : 99;
    };
    if (path[i] == '%' && i + 2 < path.size() && std::isxdigit(static_cast<unsigned char>(path[i + 1])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(path[i + 2])) != 0) {
      pointer += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      pointer += path[i];
    }
  }
  const auto nothing = [&] {
    return schema_error(ErrorCode::invalid_argument, place.path, "$ref is " + reference.dump().substr(0, 60) + ", and nothing is there");
  };
  if (!pointer.empty() && pointer[0] != '/') return nothing();
  const Json* at = &document;
  for (std::size_t begin = 1; begin <= pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string name;
    for (std::size_t i = begin; i < end; ++i) {
      const bool escape = pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      name += escape ? (pointer[++i] == '0' ? '~' : '/') : pointer[i];
    }
    begin = end + 1;
    if (at->is_object() && at->contains(name)) {
      at = &at->at(name);
    } else if (at->is_array() && !name.empty() && name.size() < 6 && name.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(name) < at->size()) {
      at = &at->at(std::stoul(name));
    } else {
      return nothing();
    }
  }
  return SchemaPlace{at, pointer};
}

Result<std::uint32_t> count_of(const SchemaPlace& place, const char* keyword, std::uint32_t absent) {
  const Json* value = member(*place.schema, keyword);
  if (value == nullptr) return absent;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number >= 0) || number != static_cast<double>(static_cast<std::uint64_t>(std::min(number, 1e15))))
    return schema_error(ErrorCode::invalid_argument, place.path,
                        std::string(keyword) + " is " + value->dump().substr(0, 60) + "; it must be a whole number, 0 or more");
  return static_cast<std::uint32_t>(std::min(number, 4e9));
}

std::vector<std::string> required_of(const Json& schema) {
  std::vector<std::string> names;
  const Json* required = member(schema, "required");
  if (required == nullptr || !required->is_array()) return names;
  for (const Json& name : *required)
    if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

std::string canonical(const Json& value) {
  if (value.is_string()) return json_string(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value.dump();
  std::string text(1, value.is_array() ? '[' : '{');
  for (const auto& [key, part] : value.items()) {
    if (text.size() > 1) text += ',';
    if (value.is_object()) text += json_string(key) + ':';
    text += canonical(part);
  }
  return text += value.is_array() ? ']' : '}';
}

std::uint8_t type_of_value(const Json& value) {
  if (value.is_null()) return type_null;
  if (value.is_boolean()) return type_boolean;
  if (value.is_number()) {
    const double number = value.get<double>();
    return !value.is_number_float() || number == static_cast<double>(static_cast<std::int64_t>(std::clamp(number, -9e15, 9e15))) ? type_integer
                                                                                                                                 : type_number;
  }
  return value.is_string() ? type_string : value.is_array() ? type_array : type_object;
}

bool are_disjoint(const Json& document, const SchemaPlace& a, const SchemaPlace& b, std::uint32_t depth) {
  if (depth > 8) return false;
  if (*a.schema == Json(false) || *b.schema == Json(false)) return true;
  if (!a.schema->is_object() || !b.schema->is_object()) return false;
  for (const bool swapped : {false, true}) {
    const SchemaPlace& one = swapped ? b : a;
    const SchemaPlace& other = swapped ? a : b;
    if (one.schema->contains("$ref")) {
      const auto target = resolve(document, one);
      return target && are_disjoint(document, *target, other, depth + 1);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      const Json* parts = member(*one.schema, keyword);
      if (parts == nullptr || !parts->is_array()) continue;
      return std::all_of(parts->begin(), parts->end(), [&](const Json& part) { return are_disjoint(document, {&part, ""}, other, depth + 1); });
    }
  }
  const auto a_values = values_of(*a.schema), b_values = values_of(*b.schema);
  const auto a_types = types_of(a), b_types = types_of(b);
  if (!a_types || !b_types) return false;
  if (a_values && b_values)
    return std::none_of(a_values->begin(), a_values->end(),
                        [&](const Json& v) { return std::any_of(b_values->begin(), b_values->end(), [&](const Json& w) { return equal(v, w); }); });
  if (a_values && no_value_of(*a_values, *b_types)) return true;
  if (b_values && no_value_of(*b_values, *a_types)) return true;
  if (share_no_type(*a_types, *b_types)) return true;
  if ((*a_types & *b_types) != type_object || a_values || b_values) return false;
  return have_disjoint_members(document, a, b, depth) || have_disjoint_members(document, b, a, depth);
}

}  // namespace althing::protocol::grammar
