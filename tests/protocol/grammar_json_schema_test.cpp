// JSON schemas as automata: which texts satisfy which schema, keyword by keyword; what is refused and how; and that no walk over legal bytes comes to
// a dead end.
#include "protocol/grammar/json_schema.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/wire/json_text.hpp"
#include "tests/protocol/grammar_support.hpp"

namespace althing::protocol::grammar {
namespace {

struct Case {
  std::string schema;
  std::vector<std::string> valid, invalid;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {R"({"type":"boolean"})", {"true", "false"}, {"null", " true", "true "}},
      {R"({"type":["null","integer"]})", {"null", "0", "-7", "123456789012345"}, {"1.0", "01", "-0", "1e3", "1234567890123456"}},
      {R"({"type":"number"})", {"0", "-1.5", "1e10", "2.5E-3", "-0"}, {"01", "1.", ".5", "1e", "1e100", "+1"}},
      {R"({"type":"string"})",
       {R"("")", R"("a\nb")", R"("é😀")", R"("\ud83d\ude00")", R"("\u00E9\/")"},
       {R"(")", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", R"("\ud83dA")", "\"\xFF\""}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("\n\u0041é")", R"("😀\ud83d\ude00")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^[A-Z]{2}\\d+$"})", {R"("AB1")"}, {R"("AB")", R"("xAB1")", R"("AB1x")"}},
      {R"({"type":"string","pattern":"b+"})", {R"("b")", R"("abc")", R"("\n\"b")"}, {R"("")", R"("ac")"}},
      {R"({"type":"string","pattern":"^a|b$","maxLength":3})", {R"("a")", R"("axx")", R"("xxb")"}, {R"("xa")", R"("axxx")", R"("bx")"}},
      {R"({"type":"string","pattern":"^[\"\\\\\\n]$"})", {R"("\"")", R"("\\")", R"("\n")"}, {R"(""")", R"("n")"}},
      {R"({"type":"string","format":"date"})", {R"("2026-12-31")"}, {R"("2026-02-30")", R"("2026-13-01")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"enum":["red","green",1,null,{"a":[1]}]})", {R"("red")", "1", "null", R"({"a":[1]})"}, {R"("re")", "2", R"({"a": [1]})"}},
      {R"({"type":"string","enum":["red",1]})", {R"("red")"}, {"1"}},
      {R"({"const":"a\"\u00e9"})", {R"("a\"é")"}, {R"("a")"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
       {"[1]", "[1,2]", "[ 1, 2]", "[\n  1,\n  2\n]"},
       {"[]", "[1,2,3]", "[1,]", "[1  ,2]", "[  1]"}},
      {R"({"type":"array","items":false})", {"[]"}, {"[1]"}},
      {R"({"type":"array"})", {"[]", R"([1,"a",[{}]])"}, {"[1 2]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":2,"maxItems":2})", {R"([1,"a"])"}, {"[1]", R"(["a",1])", R"([1,"a",2])"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"items":{"const":2}})", {"[]", "[1]", "[1,2,2,2]"}, {"[2]", "[1,1]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1\n}"},
       {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"a":1})", R"({"a":1,"c":2})", R"({"a" :1})"}},
      {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}}})",
       {"{}", R"({"a":1})", R"({"b":2})", R"({"a":1,"c":3})", R"({"b":2,"c":3})"},
       {R"({"c":3,"a":1})", "{,}", R"({"a":1,})"}},
      {R"({"type":"object","properties":{"ab":{"const":1}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"ab":1})", R"({"x":true})", R"({"ab":1,"a":true,"abc":false,"":true})"},
       {R"({"ab":true})", R"({"x":1})", R"({"a\u0062":true})", R"({"x":true,"ab":1})"}},
      {R"({"type":"object"})", {"{}", R"({"any":[null]})"}, {"[]"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"v":{"type":"null"}},"required":["k","v"]},{"properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","v":null})", R"({"k":"b"})"},
       {R"({"k":"a"})", R"({"k":"b","v":null})"}},
      {R"({"$ref":"#/$defs/list","$defs":{"list":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/list"},{"type":"null"}]}},"required":["next"]}}})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {R"({"next":{}})"}},
      {R"({"properties":{"kids":{"type":"array","items":{"$ref":"#"}}}})", {R"({"kids":[{"kids":[]},{}]})"}, {R"({"kids":[1]})"}},
      {R"({"allOf":[{"$ref":"#/definitions/a~1b%25"}],"definitions":{"a/b%":{"const":4}}})", {"4"}, {"5"}},
      {R"({"type":"integer","minimum":-5,"maximum":12})", {"-5", "0", "9", "10", "12"}, {"-6", "13", "20", "-0", "012"}},
      {R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":1000.5})", {"1", "999", "1000"}, {"0", "1001", "-1"}},
      {R"({"type":"integer","minimum":100})", {"100", "999999999999999"}, {"99", "0", "-100"}},
      {R"({"type":"integer","maximum":-100})", {"-100", "-2345"}, {"-99", "100"}},
      {R"({"type":"number","minimum":0,"maximum":1})", {"0", "1", "0.5", "1.0", "0.000", "1.00"}, {"1.01", "-0.1", "2", "-0", "1e0"}},
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})", {"0.1", "0.001", "0.999"}, {"0", "0.0", "1", "1.0"}},
      {R"({"type":"number","minimum":-1.25,"maximum":2.75})", {"-1.25", "-1.250", "-0.5", "0", "2.75", "2.7"}, {"-1.26", "2.76", "2.751", "-1.2501"}},
      {R"({"type":"number","minimum":10})", {"10", "10.5", "123.456", "99999.25"}, {"9.99", "-10"}},
      {"true", {"1", "[]", R"({"a":"b"})"}, {"nul"}},
      {"{}", {"1", "[]"}, {""}},
  };
  return all;
}

TEST(GrammarJsonSchema, texts_that_satisfy_and_texts_that_do_not) {
  for (const Case& c : cases()) {
    const auto automaton = compile_json_schema(c.schema);
    ASSERT_TRUE(automaton) << c.schema << ": " << automaton.error().message;
    for (const std::string& text : c.valid) EXPECT_EQ(read(*automaton, text), Read::whole) << c.schema << " and " << text;
    for (const std::string& text : c.invalid) EXPECT_NE(read(*automaton, text), Read::whole) << c.schema << " and " << text;
  }
}

TEST(GrammarJsonSchema, random_walks_never_come_to_a_dead_end_and_are_json) {
  std::mt19937_64 random(7);
  int whole_count = 0;
  for (const Case& c : cases()) {
    const auto automaton = compile_json_schema(c.schema);
    ASSERT_TRUE(automaton);
    Matcher matcher(*automaton);
    for (int i = 0; i < 60; ++i) {
      bool whole = false;
      const std::string text = random_text(matcher, random, 3000, whole);
      ASSERT_EQ(text.find("<dead end>"), std::string::npos) << c.schema << " and " << text;
      if (!whole) continue;
      ++whole_count;
      const auto parsed = wire::parse_json(text, 200);
      // A key may come twice among members that nobody named.
      EXPECT_TRUE(parsed || parsed.error().message.find("twice") != std::string::npos)
          << c.schema << " and " << text << ": " << parsed.error().message;
    }
  }
  EXPECT_GT(whole_count, 1500);
}

TEST(GrammarJsonSchema, what_cannot_be_held_is_refused_by_name_and_path) {
  struct Refusal {
    std::string schema, name, path;
    ErrorCode code = ErrorCode::unsupported;
  };
  const std::vector<Refusal> refusals = {
      {R"({"properties":{"a":{"type":"array","uniqueItems":true}}})", "uniqueItems", "#/properties/a:"},
      {R"({"patternProperties":{}})", "patternProperties", "#:"},
      {R"({"not":{}})", "\"not\"", "#:"},
      {R"({"items":{"if":{}}})", "\"if\"", "#/items:"},
      {R"({"multipleOf":2})", "multipleOf", "#:"},
      {R"({"type":"string","format":"iri"})", "iri", "#:"},
      {R"j({"type":"string","pattern":"(?=a)"})j", "lookahead", "#:"},
      {R"({"allOf":[{},{}]})", "allOf", "#:"},
      {R"({"anyOf":[{}],"type":"object"})", "beside", "#:"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf", "#:"},
      {R"({"oneOf":[{"type":"object"},{"type":"object"}]})", "oneOf", "#:"},
      {R"({"$ref":"https://example.com/x"})", "$ref", "#:"},
      {R"({"nullable":true,"type":"string"})", "nullable", "#:"},
      {R"({"required":["a"]})", "required", "#:"},
      {R"({"items":[{}]})", "prefixItems", "#:"},
      {R"({"type":"strng"})", "strng", "#:", ErrorCode::invalid_argument},
      {R"({"$ref":"#/nowhere"})", "nowhere", "#:", ErrorCode::invalid_argument},
      {R"({"minItems":-1})", "minItems", "#:", ErrorCode::invalid_argument},
      {R"({"anyOf":[]})", "anyOf", "#:", ErrorCode::invalid_argument},
      {R"({"properties":{"a":3}})", "schema is", "#/properties/a:", ErrorCode::invalid_argument},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no text", "", ErrorCode::invalid_argument},
      {R"({"type":"array","minItems":2,"maxItems":1})", "no text", "", ErrorCode::invalid_argument},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text", "", ErrorCode::invalid_argument},
      {R"({"$ref":"#"})", "", "", ErrorCode::invalid_argument},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself", "", ErrorCode::invalid_argument},
      {R"({"type":"string","maxLength":100000})", "states", "", ErrorCode::too_large},
      {"{", "JSON", "", ErrorCode::invalid_argument},
      {"[]", "schema is", "#:", ErrorCode::invalid_argument},
  };
  for (const Refusal& refusal : refusals) {
    const auto automaton = compile_json_schema(refusal.schema);
    ASSERT_FALSE(automaton) << refusal.schema;
    EXPECT_EQ(automaton.error().code, refusal.code) << refusal.schema << ": " << automaton.error().message;
    EXPECT_EQ(automaton.error().field, "grammar") << refusal.schema;
    EXPECT_NE(automaton.error().message.find(refusal.name), std::string::npos) << refusal.schema << ": " << automaton.error().message;
    EXPECT_NE(automaton.error().message.find(refusal.path), std::string::npos) << refusal.schema << ": " << automaton.error().message;
  }
}

TEST(GrammarJsonSchema, annotations_change_nothing) {
  const auto automaton = compile_json_schema(
      R"({"$schema":"x","$id":"y","title":"T","description":"d","default":3,"examples":[1],"deprecated":true,"readOnly":true,"x-mine":{},"type":"integer"})");
  ASSERT_TRUE(automaton) << automaton.error().message;
  EXPECT_EQ(read(*automaton, "5"), Read::whole);
}

TEST(GrammarJsonSchema, nesting_has_a_bound_and_what_is_open_there_can_still_be_closed) {
  const auto automaton = compile_json_object();
  ASSERT_TRUE(automaton);
  std::string text;
  int depth = 0;
  while (depth < 1000 && read(*automaton, text + "{\"a\":{") != Read::no) text += "{\"a\":", ++depth;
  EXPECT_GT(depth, 20);
  EXPECT_LT(depth, 100);
  EXPECT_EQ(read(*automaton, text + "1" + std::string(static_cast<std::size_t>(depth), '}')), Read::whole);
}

}  // namespace
}  // namespace althing::protocol::grammar
