// Every alternative of the o200k pattern, what its backtracking finds, and the classes behind it. Expected pieces are those of a regular
// expression engine run on the pattern.
#include "protocol/tokenizer/pretokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "protocol/tokenizer/character_class.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = piece_end(text, begin);
    if (end <= begin || end > text.size()) {
      ADD_FAILURE() << "the piece at " << begin << " ends at " << end << " of " << text.size();
      break;
    }
    found.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

TEST(TokenizerScanner, a_word_is_an_upper_run_then_a_lower_run) {
  EXPECT_THAT(pieces("ABCdef"), ElementsAre("ABCdef"));
  EXPECT_THAT(pieces("abcDEF"), ElementsAre("abc", "DEF"));
  EXPECT_THAT(pieces("getHTTPResponse"), ElementsAre("get", "HTTPResponse"));
  EXPECT_THAT(pieces("Größe ÄRGER Ærø"), ElementsAre("Größe", " ÄRGER", " Ærø"));
}

TEST(TokenizerScanner, an_upper_run_gives_back_to_its_last_character_that_is_also_lower) {
  EXPECT_THAT(pieces("日本ABC"), ElementsAre("日本", "ABC"));
  EXPECT_THAT(pieces("中AB"), ElementsAre("中", "AB"));
  EXPECT_THAT(pieces("中A中B"), ElementsAre("中A中", "B"));
  EXPECT_THAT(pieces("中Ab"), ElementsAre("中Ab"));
  EXPECT_THAT(pieces("한aעb"), ElementsAre("한aעb"));
  EXPECT_THAT(pieces("A\u0301BC"), ElementsAre("A\u0301", "BC"));
}

TEST(TokenizerScanner, a_word_takes_one_character_before_it_that_is_no_line_break_letter_or_number) {
  EXPECT_THAT(pieces(" word"), ElementsAre(" word"));
  EXPECT_THAT(pieces("(word)"), ElementsAre("(word", ")"));
  EXPECT_THAT(pieces("\tword"), ElementsAre("\tword"));
  EXPECT_THAT(pieces("\u00a0word"), ElementsAre("\u00a0word"));
  EXPECT_THAT(pieces("\nword"), ElementsAre("\n", "word"));
  EXPECT_THAT(pieces("1word"), ElementsAre("1", "word"));
  EXPECT_THAT(pieces("((word"), ElementsAre("((", "word"));
  EXPECT_THAT(pieces("\xF0\x9F\x98\x80word"), ElementsAre("\xF0\x9F\x98\x80word"));
}

TEST(TokenizerScanner, a_mark_can_be_the_prefix_or_the_word) {
  EXPECT_THAT(pieces("\u0300alone"), ElementsAre("\u0300alone"));
  EXPECT_THAT(pieces("\u0300"), ElementsAre("\u0300"));
  EXPECT_THAT(pieces("\u0300ABC"), ElementsAre("\u0300", "ABC"));
  EXPECT_THAT(pieces("\u0300\u0301ABC"), ElementsAre("\u0300\u0301", "ABC"));
  EXPECT_THAT(pieces("\u0300's"), ElementsAre("\u0300's"));
  EXPECT_THAT(pieces("!\u0300"), ElementsAre("!\u0300"));
  EXPECT_THAT(pieces("!!\u0300"), ElementsAre("!!\u0300"));
}

TEST(TokenizerScanner, one_contraction_ends_a_word) {
  EXPECT_THAT(pieces("I'm'd"), ElementsAre("I'm", "'d"));
  EXPECT_THAT(pieces("it's they'RE we've you'Ll he'd can't"), ElementsAre("it's", " they'RE", " we've", " you'Ll", " he'd", " can't"));
  EXPECT_THAT(pieces("IT'S"), ElementsAre("IT'S"));
  EXPECT_THAT(pieces("a'\u017F"), ElementsAre("a'\u017F"));  // Long s folds to s.
  EXPECT_THAT(pieces("a'xs"), ElementsAre("a", "'xs"));
  EXPECT_THAT(pieces("a'r"), ElementsAre("a", "'r"));
  EXPECT_THAT(pieces("a'"), ElementsAre("a", "'"));
  EXPECT_THAT(pieces("it\u2019s"), ElementsAre("it", "\u2019s"));
  EXPECT_THAT(pieces("a'\x13"), ElementsAre("a", "'\x13"));
  EXPECT_THAT(pieces("a'start"), ElementsAre("a's", "tart"));
}

TEST(TokenizerScanner, numbers_go_in_threes) {
  EXPECT_THAT(pieces("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(pieces("²½Ⅷ１٣"), ElementsAre("²½Ⅷ", "１٣"));
  EXPECT_THAT(pieces(" 12"), ElementsAre(" ", "12"));
  EXPECT_THAT(pieces("a1b2"), ElementsAre("a", "1", "b", "2"));
}

TEST(TokenizerScanner, punctuation_takes_a_space_before_and_line_breaks_and_slashes_after) {
  EXPECT_THAT(pieces(" !!\r\n//\nx"), ElementsAre(" !!\r\n//\n", "x"));
  EXPECT_THAT(pieces("  !!"), ElementsAre(" ", " !!"));
  EXPECT_THAT(pieces("\t!!"), ElementsAre("\t", "!!"));
  EXPECT_THAT(pieces("http://a/b"), ElementsAre("http", "://", "a", "/b"));
  EXPECT_THAT(pieces("!\n !"), ElementsAre("!\n", " !"));
  EXPECT_THAT(pieces("<|start|>"), ElementsAre("<|", "start", "|>"));
}

TEST(TokenizerScanner, spaces_end_at_the_last_line_break_else_leave_one_for_what_follows) {
  EXPECT_THAT(pieces("a \n \n b"), ElementsAre("a", " \n \n", " b"));
  EXPECT_THAT(pieces("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(pieces("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(pieces("a   1"), ElementsAre("a", "  ", " ", "1"));
  EXPECT_THAT(pieces("a \n"), ElementsAre("a", " \n"));
  EXPECT_THAT(pieces("a\n  "), ElementsAre("a", "\n", "  "));
  EXPECT_THAT(pieces("\r\n\r\n\tx"), ElementsAre("\r\n\r\n", "\tx"));
  EXPECT_THAT(pieces("\u3000\u3000x"), ElementsAre("\u3000", "\u3000x"));
  EXPECT_THAT(pieces("a\u0085\u2028b"), ElementsAre("a", "\u0085", "\u2028b"));
}

TEST(TokenizerScanner, white_space_is_the_unicode_property) {
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c < 0x110000; ++c)
    if ((class_of(c) & character_class::space) != 0) spaces.push_back(c);
  EXPECT_THAT(spaces, ElementsAre(9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                  0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000));
}

TEST(TokenizerScanner, classes_of_known_characters) {
  using namespace character_class;
  const std::uint8_t mark = upper_run | lower_run, other_letter = upper_run | lower_run | letter;
  EXPECT_EQ(class_of('A'), upper_run | letter);
  EXPECT_EQ(class_of('z'), lower_run | letter);
  EXPECT_EQ(class_of(0x01C5), upper_run | letter);  // a title case digraph
  EXPECT_EQ(class_of(0x02B0), other_letter);        // a modifier letter
  EXPECT_EQ(class_of(0x6F22), other_letter);
  EXPECT_EQ(class_of(0x323AF), other_letter);  // the last ideograph of extension H, of Unicode 15
  EXPECT_EQ(class_of(0x0301), mark);
  EXPECT_EQ(class_of(0xE0100), mark);
  EXPECT_EQ(class_of('7'), number);
  EXPECT_EQ(class_of(0x2167), number);
  for (const char32_t none :
       {U'!', U'_', char32_t{0xFEFF}, char32_t{0x180E}, char32_t{0x200B}, char32_t{0x1F600}, char32_t{0xE000}, char32_t{0xE01F0}, char32_t{0x10FFFF}})
    EXPECT_EQ(class_of(none), 0) << std::hex << static_cast<unsigned>(none);
}

TEST(TokenizerScanner, pieces_cover_any_text_and_begin_at_characters) {
  const std::vector<std::string> alphabet = {"a",  "B",  "\u01C5", "\u02B0", "中", "\u0301", "1", "²", " ",     "\n",
                                             "\r", "\t", "\u3000", "'",      "s",  "/",      "!", "😀", "\uFFFD"};
  std::mt19937 random(20240601);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t i = random() % 24 + 1; i > 0; --i) text += alphabet[random() % alphabet.size()];
    std::string joined;
    for (const std::string& piece : pieces(text)) {
      EXPECT_EQ(valid_utf8_prefix(piece), piece.size());
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace althing::protocol
