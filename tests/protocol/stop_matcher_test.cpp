// Stop strings in text that comes in any pieces: held against a search in the whole text.
#include "protocol/wire/stop_matcher.hpp"

#include <gtest/gtest.h>

#include <random>

namespace althing::protocol::wire {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::uint32_t> stop;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};
void PrintTo(const Outcome& o, std::ostream* out) { *out << '"' << o.text << "\" stop " << (o.stop ? std::to_string(*o.stop) : "none"); }

// The oracle: for each end, from the first on, the longest stop string that ends there.
Outcome in_whole(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    std::optional<std::uint32_t> best;
    for (std::uint32_t i = 0; i < stops.size(); ++i)
      if (text.substr(0, end).ends_with(stops[i]) && (!best || stops[i].size() > stops[*best].size())) best = i;
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

Outcome in_pieces(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.text += matcher.push(piece);
    if ((outcome.stop = matcher.matched())) return outcome;
  }
  outcome.text += matcher.flush();
  return outcome;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> parts;
  for (const char c : text) {
    if (parts.empty() || (static_cast<unsigned char>(c) & 0xC0u) != 0x80u) parts.emplace_back();
    parts.back() += c;
  }
  return parts;
}

TEST(StopMatcher, finds_what_a_search_in_the_whole_text_finds) {
  struct Case {
    const char* text;
    std::vector<std::string> stops;
    Outcome expected;
  };
  const Case cases[] = {
      {"one two three", {" two"}, {"one", 0}},
      {"one two three", {"four"}, {"one two three", {}}},
      {"abc", {"abc"}, {"", 0}},
      {"abc", {"c"}, {"ab", 0}},
      {"ab", {"abc"}, {"ab", {}}},               // only begun
      {"aabaac", {"aac"}, {"aab", 0}},           // begun twice over
      {"aaaaab", {"aab"}, {"aaa", 0}},           // a beginning within a beginning
      {"xabcd", {"abcd", "bc"}, {"xa", 1}},      // the earliest end
      {"xabc", {"bc", "abc", "c"}, {"x", 1}},    // at the same end the longest
      {"xabc", {"abc", "bc", "abc"}, {"x", 0}},  // named twice: the first
      {"a b", {"\n", " "}, {"a", 1}},
      {"h\u00e9llo w\u00f6rld", {"\u00f6"}, {"h\u00e9llo w", 0}},
      {"\u00e9\u00e8", {"\u00e8"}, {"\u00e9", 0}},  // both begin with the same byte
      {"\U0001F600\U0001F601!", {"\U0001F601"}, {"\U0001F600", 0}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(in_whole(c.text, c.stops), c.expected) << "the oracle itself, " << c.text;
    EXPECT_EQ(in_pieces({c.text}, c.stops), c.expected) << c.text;
    EXPECT_EQ(in_pieces(characters(c.text), c.stops), c.expected) << c.text << ", character by character";
  }
}

TEST(StopMatcher, holds_no_more_than_a_beginning_and_lets_the_rest_go_at_once) {
  StopMatcher matcher({"abab", "xyz"});
  EXPECT_EQ(matcher.push("12ab"), "12");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  EXPECT_EQ(matcher.push("a"), "");
  EXPECT_EQ(matcher.push("xy"), "aba");
  EXPECT_EQ(matcher.push("x"), "xy");
  EXPECT_EQ(matcher.flush(), "x");
  EXPECT_EQ(matcher.push("yz"), "yz") << "another text began";
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, random_texts_in_random_pieces) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return random() % n; };
  const std::vector<std::string> alphabet = {"a", "b", "\u00e9", "\u00e8"};
  const auto word = [&](std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += alphabet[below(alphabet.size())];
    return text;
  };
  std::size_t matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops(1 + below(4));
    for (std::string& stop : stops) stop = word(1 + below(5));
    const std::string text = word(below(24));
    std::vector<std::string> pieces;
    for (const std::string& character : characters(text)) {
      if (pieces.empty() || below(3) == 0) pieces.emplace_back();
      pieces.back() += character;
    }
    const Outcome expected = in_whole(text, stops);
    ASSERT_EQ(in_pieces(pieces, stops), expected) << "round " << round << ", text " << text;
    matches += expected.stop ? 1 : 0;
  }
  EXPECT_GT(matches, 5'000u);
}

}  // namespace
}  // namespace althing::protocol::wire
