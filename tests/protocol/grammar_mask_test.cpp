// Masks against the definition of them, token by token; and replies under a grammar, from the first token to the last.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "protocol/chat/plain_template.hpp"
#include "protocol/grammar/constrained_reply.hpp"
#include "protocol/grammar/json_schema.hpp"
#include "tests/protocol/grammar_support.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::grammar {
namespace {

using althing::tests::o200k_format;
using althing::tests::tiny_format;

constexpr std::uint32_t more_ids = 40;  // of the model, that the tokenizer does not have

wire::Grammar schema(std::string text) { return {wire::GrammarKind::json_schema, std::move(text)}; }
const std::string person =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":120},)"
    R"("tags":{"type":"array","items":{"enum":["a","b","long tag"]},"maxItems":3}},"required":["name","age"]})";

struct Fixture {
  explicit Fixture(const harmony::Format& of, const wire::Grammar& asked)
      : format(of),
        vocabulary(of.tokenizer->vocabulary_size() + more_ids),
        library(of.tokenizer, vocabulary),
        grammar(*library.get(asked, ConstrainedReply::ends_of(&of, {}))) {}
  ConstrainedReply reply(bool has_tools = false) const { return ConstrainedReply(grammar, {&format, has_tools, vocabulary}); }

  const harmony::Format& format;
  std::uint32_t vocabulary;
  GrammarLibrary library;
  std::shared_ptr<Grammar> grammar;
};

std::vector<TokenId> listed(const Mask& mask, std::uint32_t vocabulary) {
  const auto words = decode_mask(*mask, vocabulary);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; words && token < vocabulary; ++token)
    if (is_legal(*words, token)) tokens.push_back(token);
  return tokens;
}

// The same from another matcher, for each token of the vocabulary by itself.
std::vector<TokenId> by_definition(const Fixture& of, const wire::Grammar& asked, const std::string& text) {
  const auto automaton = *compile(asked);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < of.vocabulary; ++token) {
    const auto bytes = of.format.tokenizer->bytes_of(token);
    if (bytes && !bytes->empty() && !of.format.tokenizer->is_special(token) && read(automaton, text + std::string(*bytes)) != Read::no)
      tokens.push_back(token);
    const bool ends = token == of.format.return_ || token == of.format.end;
    if (ends && read(automaton, text) == Read::whole) tokens.push_back(token);
  }
  return tokens;
}

TEST(GrammarMask, holds_exactly_the_tokens_that_go_on_with_a_legal_text) {
  std::mt19937_64 random(3);
  const std::vector<wire::Grammar> grammars = {schema(person),
                                               schema("{}"),
                                               schema(R"({"type":"string","pattern":"^[а-я]{2,4}$"})"),
                                               {wire::GrammarKind::json_object, ""},
                                               {wire::GrammarKind::regex, "(yes|no|ye(ah)+)\\.?\\n*"}};
  for (const wire::Grammar& asked : grammars) {
    const Fixture of(tiny_format(), asked);
    for (int walk = 0; walk < 4; ++walk) {
      Grammar::Reader reader(of.grammar);
      std::string text;
      for (int i = 0; i < 12; ++i) {
        const auto mask = reader.mask();
        ASSERT_TRUE(mask) << mask.error().message;
        const auto tokens = listed(*mask, of.vocabulary);
        ASSERT_EQ(tokens, by_definition(of, asked, text)) << asked.text << " behind " << text;
        const TokenId token = tokens[random() % tokens.size()];
        if (of.format.tokenizer->is_special(token)) break;
        ASSERT_TRUE(reader.push(token));
        text += *of.format.tokenizer->bytes_of(token);
      }
    }
  }
}

TEST(GrammarMask, readers_of_one_grammar_do_not_disturb_each_other_even_when_it_forgets) {
  // So many places that it has to forget some.
  const wire::Grammar asked{wire::GrammarKind::regex, "([ab]*a[ab]{11}c)*"};
  const Fixture of(tiny_format(), asked);
  std::mt19937_64 random(4);
  struct Walk {
    Grammar::Reader reader;
    std::string text;
  };
  std::vector<std::unique_ptr<Walk>> walks;
  for (int i = 0; i < 40; ++i) walks.emplace_back(new Walk{Grammar::Reader(of.grammar), ""});
  const auto automaton = *compile(asked);
  for (int i = 0; i < 4000; ++i) {
    Walk& walk = *walks[random() % walks.size()];
    const std::string next(1, "abc"[random() % 3]);
    const auto tokens = of.format.tokenizer->encode(next);
    ASSERT_EQ(tokens.size(), 1u);
    const bool legal = read(automaton, walk.text + next) != Read::no;
    ASSERT_EQ(walk.reader.push(tokens[0]), legal) << walk.text << next;
    if (legal) walk.text += next;
    if (i % 250 == 0) {
      const auto mask = walk.reader.mask();
      ASSERT_TRUE(mask) << mask.error().message;
      ASSERT_EQ(listed(*mask, of.vocabulary), by_definition(of, asked, walk.text)) << walk.text;
    }
  }
}

TEST(GrammarMask, a_vocabulary_that_cannot_spell_what_is_needed_is_an_error_and_no_empty_mask) {
  GrammarLibrary library(tiny_format().tokenizer, 3);
  Grammar::Reader reader(*library.get({wire::GrammarKind::regex, "zzz"}, {}));
  const auto mask = reader.mask();
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::internal);
}

TEST(GrammarMask, equal_grammars_are_one_and_there_is_a_bound_of_different_ones) {
  GrammarLibrary library(tiny_format().tokenizer, 100);
  std::vector<std::shared_ptr<Grammar>> held;
  const auto get = [&](int i) { return library.get({wire::GrammarKind::regex, "a" + std::to_string(i)}, {}); };
  for (int i = 0; i < static_cast<int>(GrammarLibrary::grammars_max); ++i) held.push_back(*get(i));
  EXPECT_EQ(*get(5), held[5]);
  const auto over = get(1000);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, ErrorCode::busy);
  held.clear();
  EXPECT_TRUE(get(1000)) << "nobody uses the others any more";
}

// Draws whatever is allowed, the text of the final channel mostly by chance; tells what was drawn.
std::vector<TokenId> play(ConstrainedReply& reply, const Fixture& of, std::mt19937_64& random, const std::vector<TokenId>& script, std::size_t most) {
  std::vector<TokenId> drawn;
  std::uint32_t until = 0;
  Mask mask;
  while (drawn.size() < most && !reply.is_over()) {
    const auto next = reply.next();
    EXPECT_TRUE(next) << next.error().message;
    if (!next) break;
    EXPECT_TRUE((next->mask != nullptr) != (next->free > 0));
    // What was allowed before may be drawn already: it stays allowed, and it stays free.
    const std::size_t allowed = drawn.size() + (next->mask ? 1 : next->free);
    EXPECT_TRUE(next->mask ? allowed > until : allowed >= until) << drawn.size() << " of " << script.size();
    until = static_cast<std::uint32_t>(drawn.size()) + (next->mask ? 1 : next->free);
    TokenId token = 0;
    if (next->mask) {
      const auto tokens = listed(next->mask, of.vocabulary);
      token = tokens[random() % tokens.size()];
      if (drawn.size() < script.size() && std::find(tokens.begin(), tokens.end(), script[drawn.size()]) != tokens.end()) token = script[drawn.size()];
    } else {
      token = drawn.size() < script.size() ? script[drawn.size()] : static_cast<TokenId>(random() % of.vocabulary);
    }
    reply.push(token);
    drawn.push_back(token);
  }
  return drawn;
}

TEST(ConstrainedReply, reasoning_is_free_and_the_answer_is_not) {
  const Fixture of(tiny_format(), schema(person));
  std::mt19937_64 random(9);
  const std::string before = "<|channel|>analysis<|message|>I {think].<|end|><|start|>assistant<|channel|>final<|message|>";
  for (int i = 0; i < 30; ++i) {
    ConstrainedReply reply = of.reply();
    const auto script = of.format.tokenizer->encode_with_special(before);
    const auto drawn = play(reply, of, random, script, 400);
    ASSERT_GT(drawn.size(), script.size());
    EXPECT_TRUE(std::equal(script.begin(), script.end(), drawn.begin())) << "nothing of this is forbidden";
    std::string text;
    for (std::size_t t = script.size(); t < drawn.size(); ++t)
      if (!of.format.tokenizer->is_special(drawn[t])) text += *of.format.tokenizer->bytes_of(drawn[t]);
    EXPECT_EQ(read(*compile(schema(person)), text), reply.is_over() ? Read::whole : Read::prefix) << text;
    const bool has_end = drawn.back() == of.format.return_ || drawn.back() == of.format.end;
    EXPECT_EQ(reply.is_over(), has_end);
  }
}

TEST(ConstrainedReply, whatever_a_model_draws_where_it_is_free_nothing_unheld_becomes_the_answer) {
  const Fixture of(tiny_format(), {wire::GrammarKind::regex, "[a-z]{1,8}"});
  const auto automaton = *compile({wire::GrammarKind::regex, "[a-z]{1,8}"});
  std::mt19937_64 random(11);
  const std::vector<std::string> pieces = {
      "<|start|>", "assistant",  "<|channel|>",     "final",         "fi",   "nal",   "analysis", "commentary", "<|message|>",  "<|end|>",
      "<|call|>",  "<|return|>", " to=functions.f", "<|constrain|>", "json", " json", "hello",    "user",       "<|endoftext|>"};
  int answers = 0;
  for (int i = 0; i < 1000; ++i) {
    std::vector<TokenId> script;
    for (int p = 0; p < 24; ++p) {
      const auto more = of.format.tokenizer->encode_with_special(pieces[random() % pieces.size()]);
      script.insert(script.end(), more.begin(), more.end());
    }
    ConstrainedReply reply = of.reply(i % 2 == 0);
    const auto drawn = play(reply, of, random, script, script.size());
    // What a reader makes of it.
    harmony::RecoveringParser parser(of.format);
    std::vector<harmony::RecoveredEvent> events;
    for (const TokenId token : drawn) parser.push(token, events);
    bool is_answer = false;
    std::string text;
    for (const auto& event : events) {
      if (const auto* start = std::get_if<harmony::RecoveredStart>(&event)) is_answer = start->channel == "final" && start->recipient.empty();
      if (const auto* said = std::get_if<harmony::RecoveredText>(&event); said != nullptr && is_answer) text += said->text;
    }
    if (text.empty()) continue;
    ++answers;
    EXPECT_NE(read(automaton, text), Read::no) << text << " of script " << i;
    EXPECT_EQ(parser.repairs()[static_cast<std::size_t>(harmony::Repair::missing_message)], 0u) << "of script " << i;
  }
  EXPECT_GT(answers, 50);
}

TEST(ConstrainedReply, without_channels_the_grammar_holds_from_the_first_token) {
  const auto tokenizer = tiny_format().tokenizer;
  GrammarLibrary library(tokenizer, tokenizer->vocabulary_size());
  const std::vector<TokenId> stops{tiny_format().endoftext};
  const auto grammar = *library.get({wire::GrammarKind::regex, "ab?"}, ConstrainedReply::ends_of(nullptr, stops));
  ConstrainedReply reply(grammar, {nullptr, false, tokenizer->vocabulary_size()});
  const auto first = reply.next();
  ASSERT_TRUE(first && first->mask);
  for (const TokenId token : listed(first->mask, tokenizer->vocabulary_size())) EXPECT_EQ(tokenizer->bytes_of(token)->front(), 'a');
  reply.push(tokenizer->encode("a")[0]);
  const auto second = listed(reply.next()->mask, tokenizer->vocabulary_size());
  EXPECT_NE(std::find(second.begin(), second.end(), stops[0]), second.end()) << "it may end";
  reply.push(stops[0]);
  EXPECT_TRUE(reply.is_over());
}

}  // namespace
}  // namespace althing::protocol::grammar
