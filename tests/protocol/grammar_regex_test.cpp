// Regular expressions as automata: texts that are theirs and texts that are not; what is left out, what is none, and what would be too large.
#include "protocol/grammar/regex.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/grammar/json_schema.hpp"
#include "protocol/grammar/regex_syntax.hpp"
#include "tests/protocol/grammar_support.hpp"

namespace althing::protocol::grammar {
namespace {

struct Case {
  std::string expression;
  std::vector<std::string> whole, not_whole;
};

TEST(GrammarRegex, texts_that_are_the_expression_s_and_texts_that_are_not) {
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"", "ab", "abcd", "abd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aaabbc"}, {"a", "c", "abcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"(?:a{0}b){2}", {"bb"}, {"abb"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"[a-c_-]+", {"abc", "-_"}, {"d"}},
      {"[^a-c]", {"d", "é", "日", "😀"}, {"a", "", "dd"}},
      {"\\d{3}-\\w+", {"123-a_9"}, {"12-a", "123-", "١٢٣-a"}},
      {"\\D\\S\\W", {"x.!", "éé "}, {"1x!", "x x"}},
      {".", {"x", "é", "😀"}, {"\n", "\r", "xx"}},
      {"\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"eA😀"}},
      {"^a$|^b$", {"a", "b"}, {"ab"}},
      {"a^b", {}, {"ab", "a", "b"}},
      {"a$b*", {"a"}, {"ab"}},
      {"(?<year>[0-9]{4})", {"2026"}, {"26"}},
      {"[\\]\\\\]", {"]", "\\"}, {"["}},
      {"a*?b+?", {"aab"}, {""}},
      {"[à-ö]", {"à", "ä", "ö"}, {"a", "ø"}},
  };
  for (const Case& c : cases) {
    const auto automaton = compile_regex(c.expression);
    if (!automaton) {
      // An expression that nothing satisfies is refused.
      EXPECT_TRUE(c.whole.empty()) << c.expression << ": " << automaton.error().message;
      continue;
    }
    for (const std::string& text : c.whole) EXPECT_EQ(read(*automaton, text), Read::whole) << c.expression << " and " << text;
    for (const std::string& text : c.not_whole) EXPECT_NE(read(*automaton, text), Read::whole) << c.expression << " and " << text;
  }
}

TEST(GrammarRegex, what_is_left_out_is_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(?=a)", "lookahead"},   {"(?<!a)b", "lookbehind"}, {"(a)\\1", "back reference"},  {"\\bword", "word boundary"},
      {"\\p{L}", "escape \\p"}, {"a++", "possessive"},     {"(?i)a", "group of the kind"}};
  for (const auto& [expression, name] : cases) {
    const auto parsed = parse_regex(expression);
    ASSERT_FALSE(parsed) << expression;
    EXPECT_EQ(parsed.error().code, ErrorCode::unsupported) << expression;
    EXPECT_NE(parsed.error().message.find(name), std::string::npos) << parsed.error().message;
  }
}

TEST(GrammarRegex, what_is_no_expression_is_refused_with_its_place) {
  for (const char* expression :
       {"(", ")", "[a", "a{2", "a{3,2}", "*", "a|*", "\\", "[b-a]", "x{", "{2}", "(?<name", "\\x4", "\xFF", "^*", "[a-\\d]"}) {
    const auto parsed = parse_regex(expression);
    ASSERT_FALSE(parsed) << expression;
    EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument) << expression << ": " << parsed.error().message;
    EXPECT_NE(parsed.error().message.find("at byte"), std::string::npos) << parsed.error().message;
  }
}

TEST(GrammarRegex, what_would_be_too_large_is_refused_and_does_not_take_long) {
  for (const char* expression : {"a{10001}", "((a{1000}){1000}){1000}", "((((){9999}){9999}){9999}){9999}", "(.{0,300}){0,300}"}) {
    const auto automaton = compile_regex(expression);
    ASSERT_FALSE(automaton) << expression;
    EXPECT_EQ(automaton.error().code, ErrorCode::too_large) << expression << ": " << automaton.error().message;
  }
  EXPECT_FALSE(compile_regex(std::string(200, '(') + std::string(200, ')')));
  EXPECT_FALSE(compile_regex(std::string(100'000, 'a')));
}

TEST(GrammarRegex, an_expression_with_many_subsets_is_followed_all_the_same) {
  const auto automaton = compile_regex("[ab]*a[ab]{12}");
  ASSERT_TRUE(automaton);
  EXPECT_EQ(read(*automaton, "ababababababababa" + std::string(12, 'b')), Read::whole);
  EXPECT_NE(read(*automaton, std::string(40, 'b')), Read::whole);
}

}  // namespace
}  // namespace althing::protocol::grammar
