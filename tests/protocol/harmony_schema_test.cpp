// JSON schemas as types: the rules that the shared cases leave open, on expected text.
#include "protocol/harmony/schema_type.hpp"

#include <gtest/gtest.h>

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;

std::string type(const char* schema) { return type_of_schema(Json::parse(schema)); }

TEST(HarmonySchema, kitchen_sink) {
  EXPECT_EQ(type(R"({"type": "object", "description": "params object", "properties": {
      "string": {"type": "string", "title": "STRING", "description": "A string", "examples": ["hello", 5, "world"]},
      "string_nullable": {"type": "string", "nullable": true, "default": "the default"},
      "string_enum": {"type": "string", "enum": ["a", "b", "c"]},
      "oneof_string_or_number": {"description": "a oneof", "default": 20, "oneOf": [
          {"type": "string", "default": "default_string_in_oneof"}, {"type": "number", "description": "numbers can happen too"}]}}})"),
            "// params object\n"
            "{\n"
            "// STRING\n"
            "//\n"
            "// A string\n"
            "// Examples:\n"
            "// - \"hello\"\n"
            "// - \"world\"\n"
            "string?: string,\n"
            "string_nullable?: string | null, // default: \"the default\"\n"
            "string_enum?: \"a\" | \"b\" | \"c\",\n"
            "// a oneof\n"
            "// default: 20\n"
            "oneof_string_or_number?:\n"
            " | string // default: \"default_string_in_oneof\"\n"
            " | number // numbers can happen too\n"
            ",\n"
            "}");
}

TEST(HarmonySchema, type_lists_are_unions_whatever_the_enum_says) {
  EXPECT_EQ(type(R"({"type": ["integer", "string", 3, "null"], "enum": ["a"]})"), "number | string | null");
  EXPECT_EQ(type(R"({"type": []})"), "any");
  EXPECT_EQ(type(R"({"type": [1]})"), "any");
}

TEST(HarmonySchema, what_is_no_schema_is_any) {
  for (const char* schema : {"true", "null", "[]", "3", R"("string")", R"({"type": 5})", R"({"type": "date"})", "{}"}) EXPECT_EQ(type(schema), "any");
}

TEST(HarmonySchema, nullable_is_said_once) {
  EXPECT_EQ(type(R"({"oneOf": [{"type": ["string", "null"], "nullable": true}, {"type": "number", "nullable": true}]})"),
            "\n | string | null\n | number | null");
  // Only properties and variants say it; a root and array items do not.
  EXPECT_EQ(type(R"({"type": "string", "nullable": true})"), "string");
  EXPECT_EQ(type(R"({"type": "array", "items": {"type": "string", "nullable": true}})"), "string[]");
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"type": "string", "nullable": "yes"}}})"), "{\na?: string,\n}");
}

TEST(HarmonySchema, a_one_of_that_is_no_list_hides_description_and_default) {
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"type": "string", "oneOf": {}, "description": "D", "default": "x"}}})"),
            "{\na?: string,\n}");
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"oneOf": []}}})"), "{\na?:\n,\n}");
}

TEST(HarmonySchema, enum_defaults_are_bare_in_properties_and_quoted_in_plain_variants) {
  EXPECT_EQ(type(R"({"type": "object", "required": ["a"], "properties": {
      "a": {"enum": ["x"], "default": "x", "oneOf": [{"type": "string", "enum": ["x"], "default": "x", "description": "d"}]}}})"),
            "{\n// default: x\na:\n | \"x\" // d default: x\n,\n}");
  EXPECT_EQ(type(R"({"oneOf": [{"type": "string", "enum": ["x"], "default": "x", "description": "d"}]})"), "\n | \"x\" // d default: \"x\"");
}

TEST(HarmonySchema, the_first_variant_is_silent_under_a_printed_description) {
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"description": "P", "oneOf": [
      {"type": "string", "description": "first"}, {"type": "number", "description": "P"}, {"type": "boolean", "description": "third"}]}}})"),
            "{\n// P\na?:\n | string\n | number\n | boolean // third\n,\n}");
}

TEST(HarmonySchema, only_the_first_line_of_a_description_is_a_comment) {
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"type": "string", "description": "one\ntwo"}}})"), "{\n// one\ntwo\na?: string,\n}");
}

TEST(HarmonySchema, nested_objects_indent_by_four_and_close_there) {
  EXPECT_EQ(type(R"({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object"}}}}})"),
            "{\na?: {\n    b?: {\n        },\n    },\n}");
}

TEST(HarmonySchema, defaults_are_compact_json) {
  const auto compact = [](const char* text) { return compact_json(Json::parse(text)); };
  EXPECT_EQ(compact(R"({"k": [1, -2, true, null, "a\"b\u0001é"], "l": {}})"), R"({"k":[1,-2,true,null,"a\"b\u0001é"],"l":{}})");
  EXPECT_EQ(compact("[]"), "[]");
  EXPECT_EQ(compact("18446744073709551615"), "18446744073709551615");
}

TEST(HarmonySchema, floats_are_written_as_the_reference_writes_them) {
  const std::pair<const char*, const char*> written[] = {
      {"0.5", "0.5"},         {"1.0", "1.0"},         {"-0.0", "-0.0"},
      {"0.1", "0.1"},         {"1e2", "100.0"},       {"1e15", "1000000000000000.0"},
      {"1e16", "1e16"},       {"1e20", "1e20"},       {"1.5e300", "1.5e300"},
      {"123.456", "123.456"}, {"1e-5", "0.00001"},    {"1e-6", "1e-6"},
      {"-2.5e-7", "-2.5e-7"}, {"0.00012", "0.00012"},
  };
  for (const auto& [text, expected] : written) EXPECT_EQ(compact_json(Json::parse(text)), expected) << text;
}

TEST(HarmonySchema, nesting_is_counted_without_recursing_past_the_limit) {
  Json json = 1;
  for (int i = 0; i < 5; ++i) json = Json::array({json});
  EXPECT_TRUE(nesting_at_most(json, 5));
  EXPECT_FALSE(nesting_at_most(json, 4));
  EXPECT_TRUE(nesting_at_most(Json(3), 0));
}

}  // namespace
}  // namespace althing::protocol::harmony
