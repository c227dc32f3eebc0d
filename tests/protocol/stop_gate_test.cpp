// Stop strings in deltas: which text, tokens and logprobs a client hears of a choice, however it was cut into deltas.
#include "protocol/wire/stop_gate.hpp"

#include <gtest/gtest.h>

#include "protocol/wire/delta_log.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::wire {
namespace {

using Messages = std::vector<std::pair<std::string, std::string>>;  // recipient or channel, text
using Strings = std::vector<std::string>;

std::vector<TokenId> tokens_of(std::string_view text) { return tests::o200k_format().tokenizer->encode_with_special(text); }
std::string text_of(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += *tests::o200k_format().tokenizer->bytes_of(token);
  return text;
}

struct Told {
  Messages messages;
  std::string rest;  // of a stream of ids: what came as text
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::optional<std::uint32_t> stop;
  std::size_t pushed = 0;     // tokens until it stopped, or all
  std::size_t open_ends = 0;  // messages that did not end
};

// A choice's tokens through a log that is cut after every `every` of them; it is closed when it stops.
Told tell(const std::vector<TokenId>& tokens, const Strings& stops, std::size_t every, bool raw = false) {
  DeltaLog log("r", raw ? std::nullopt : std::optional<chat::ChatFormat>(tests::o200k_format()), true, 1, {stops, tests::o200k_format().tokenizer});
  Told told;
  for (const TokenId token : tokens) {
    if (log.stopped()) break;
    log.push(token, 0, TokenLogprobs{token, -1.0F, {}});
    if (++told.pushed % every == 0 && log.pending()) log.cut();
  }
  told.stop = log.stopped();
  if (told.stop) log.push(tokens[0]);  // what was in flight changes nothing
  log.close();
  if (log.pending()) log.cut();
  for (const ServerMessage& message : log.messages()) {
    const auto& delta = std::get<Delta>(message);
    told.tokens.insert(told.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    told.logprobs.insert(told.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    for (const DeltaEvent& event : delta.events) {
      if (const auto* started = std::get_if<MessageStarted>(&event)) {
        EXPECT_EQ(started->index, told.messages.size());
        told.messages.emplace_back(started->recipient.empty() ? started->channel : started->recipient, "");
        ++told.open_ends;
      } else if (const auto* text = std::get_if<Text>(&event)) {
        EXPECT_FALSE(text->text.empty());
        if (raw) {
          EXPECT_EQ(std::exchange(told.rest, text->text), "") << "once";
          continue;
        }
        EXPECT_EQ(text->index + 1, told.messages.size());
        told.messages.back().second += text->text;
      } else {
        EXPECT_EQ(std::get<MessageEnded>(event).index + 1, told.messages.size());
        --told.open_ends;
      }
    }
  }
  EXPECT_EQ(told.open_ends, 0u);
  return told;
}

void expect_told(std::string_view completion, const Strings& stops, const Messages& messages, std::optional<std::uint32_t> stop) {
  for (const std::size_t every : {1u, 2u, 3u, 1000u}) {
    const Told told = tell(tokens_of(completion), stops, every);
    EXPECT_EQ(told.messages, messages) << completion << ", a delta every " << every;
    EXPECT_EQ(told.stop, stop) << completion;
    EXPECT_EQ(told.tokens.size(), told.logprobs.size());
    for (std::size_t i = 0; i < told.tokens.size(); ++i) EXPECT_EQ(told.logprobs[i].token, told.tokens[i]);
    const auto all = tokens_of(completion);
    EXPECT_TRUE(std::equal(told.tokens.begin(), told.tokens.end(), all.begin())) << "tokens are the first ones";
  }
}

const std::string thought = "<|channel|>analysis<|message|>STOP here?<|end|><|start|>assistant";
const std::string answer = "<|channel|>final<|message|>";

TEST(StopGate, visible_text_ends_in_front_of_the_match) {
  expect_told(thought + answer + "one STOP two<|return|>", {"STOP"}, {{"analysis", "STOP here?"}, {"final", "one "}}, 0);
  expect_told(thought + answer + "one ST", {"STOP"}, {{"analysis", "STOP here?"}, {"final", "one ST"}}, std::nullopt);
  expect_told(answer + "one STOP<|return|>", {"two", "STOP"}, {{"final", "one "}}, 1);
  expect_told(answer + "STOP", {"STOP"}, {{"final", ""}}, 0);
}

TEST(StopGate, neither_reasoning_nor_calls_are_looked_at) {
  expect_told("<|channel|>commentary to=functions.f<|message|>{\"STOP\":1}<|call|>", {"STOP"}, {{"functions.f", "{\"STOP\":1}"}}, std::nullopt);
  expect_told("<|channel|>commentary<|message|>I STOP", {"STOP"}, {{"commentary", "I "}}, 0);
}

TEST(StopGate, a_match_lies_within_one_message_and_what_was_held_is_let_go_at_its_end) {
  expect_told("<|channel|>commentary<|message|>ST<|end|><|start|>assistant" + answer + "OP or STO<|return|>", {"STOP"},
              {{"commentary", "ST"}, {"final", "OP or STO"}}, std::nullopt);
}

TEST(StopGate, a_match_over_tokens_and_inside_of_characters_of_several_tokens) {
  const std::string spread = "interoperability of \U0001F9D1\u200D\U0001F680 and more";
  ASSERT_GT(tokens_of("\U0001F9D1\u200D\U0001F680").size(), 2u) << "the character is of several tokens";
  expect_told(answer + spread, {"operability of \U0001F9D1\u200D"}, {{"final", "inter"}}, 0);
  expect_told(answer + spread, {"\U0001F9D1"}, {{"final", "interoperability of "}}, 0);
}

TEST(StopGate, tokens_of_the_match_are_not_sent_nor_those_behind_it) {
  const auto head = tokens_of(answer), before = tokens_of("alpha beta"), match = tokens_of("\U0001F9D1"), behind = tokens_of(" gamma");
  std::vector<TokenId> all;
  for (const auto* part : {&head, &before, &match, &behind}) all.insert(all.end(), part->begin(), part->end());
  const Told told = tell(all, {"\U0001F9D1"}, 1);
  std::vector<TokenId> expected = head;
  expected.insert(expected.end(), before.begin(), before.end());
  EXPECT_EQ(told.tokens, expected) << "also the first token of a character that is the match";
  EXPECT_EQ(told.pushed, expected.size() + match.size()) << "the token that completes it";
  // A token that holds the match's begin and what is in front of it: its text is sent, its id cannot be.
  const Told cut = tell(tokens_of(answer + "alpha beta"), {"eta"}, 1);
  EXPECT_EQ(cut.messages, (Messages{{"final", "alpha b"}}));
  EXPECT_EQ(cut.tokens, tokens_of(answer + "alpha"));
  // A space and the first bytes of the character, in one token.
  const Told within = tell(tokens_of(answer + "inter \U0001F9D1"), {"\U0001F9D1"}, 1);
  EXPECT_EQ(within.messages, (Messages{{"final", "inter "}}));
  EXPECT_EQ(within.tokens, tokens_of(answer + "inter"));
}

TEST(StopGate, without_ids_the_same_text_is_told) {
  DeltaLog log("r", tests::o200k_format(), false, 1, {{"STOP"}, nullptr});
  for (const TokenId token : tokens_of(answer + "one STOP two")) log.push(token);
  ASSERT_TRUE(log.stopped());
  log.close();
  const auto& delta = std::get<Delta>(log.cut());
  EXPECT_TRUE(delta.tokens.empty());
  EXPECT_EQ(std::get<Text>(delta.events[1]).text, "one ");
}

TEST(StopGate, raw_text_in_front_of_a_match_is_told_where_its_token_cannot_be) {
  const std::string spread = "inter \U0001F9D1\u200D\U0001F680 alphabeta gamma";
  for (const std::string stop : {"beta", "eta gam", "\u200D", "\U0001F9D1", "a", "inter", "gamma", " gam", "r"})
    for (const std::size_t every : {1u, 2u, 1000u}) {
      const Told told = tell(tokens_of(spread), {stop}, every, true);
      EXPECT_EQ(text_of(told.tokens) + told.rest, spread.substr(0, spread.find(stop))) << stop << every;
      EXPECT_EQ(told.stop, 0u);
    }
  EXPECT_EQ(tell(tokens_of(spread), {"alphabetagamma", "never"}, 1, true).rest, "");
}

TEST(StopGate, a_control_token_is_in_a_match_as_a_whole_or_not_at_all) {
  const auto all = tokens_of("one<|end|><|start|>user");
  for (const std::string stop : {"<", "end", "|>", "e<|", "|>u", ">"}) {
    const Told told = tell(all, {stop}, 1, true);
    EXPECT_EQ(told.tokens, all) << stop;
    EXPECT_FALSE(told.stop) << stop;
  }
  for (const std::string stop : {"<|end|>", "e<|end|>", "<|end|><|start|>", "<|start|>us"}) {
    const Told told = tell(all, {"never", stop}, 1, true);
    EXPECT_EQ(told.stop, 1u) << stop;
    const std::string text = text_of(all);
    EXPECT_EQ(text_of(told.tokens) + told.rest, text.substr(0, text.find(stop))) << stop;
  }
}

TEST(StopGate, all_text_of_raw_tokens_is_looked_at) {
  const auto all = tokens_of(thought + answer + "one STOP two");
  for (const std::size_t every : {1u, 4u, 1000u}) {
    const Told told = tell(all, {"STOP"}, every, true);
    EXPECT_EQ(told.stop, 0u);
    EXPECT_TRUE(told.messages.empty());
    EXPECT_EQ(text_of(told.tokens), "<|channel|>analysis<|message|>") << "control tokens count by their names";
    EXPECT_EQ(tell(all, {"<|start|>assistant"}, every, true).stop, 0u);
    const Told none = tell(all, {"three"}, every, true);
    EXPECT_EQ(none.tokens, all);
    EXPECT_FALSE(none.stop);
  }
}

TEST(StopGate, what_is_held_makes_no_delta) {
  DeltaLog log("r", tests::o200k_format(), true, 1, {{"one two three"}, nullptr});
  for (const TokenId token : tokens_of(answer)) log.push(token);
  log.cut();
  for (const TokenId token : tokens_of("one two")) {
    log.push(token);
    EXPECT_FALSE(log.pending()) << "neither text nor ids";
  }
  log.push(tokens_of(" four")[0]);
  ASSERT_TRUE(log.pending());
  const auto& delta = std::get<Delta>(log.cut());
  EXPECT_EQ(std::get<Text>(delta.events[0]).text, "one two four");
  EXPECT_EQ(delta.tokens, tokens_of("one two four"));
}

TEST(StopGate, choices_stop_by_themselves) {
  DeltaLog log("r", tests::o200k_format(), true, 2, {{"STOP"}, nullptr});
  for (std::uint32_t choice = 0; choice < 2; ++choice)
    for (const TokenId token : tokens_of(answer + (choice == 0 ? "one two" : "one STOP"))) log.push(token, choice);
  EXPECT_FALSE(log.stopped(0));
  EXPECT_EQ(log.stopped(1), 0u);
}

}  // namespace
}  // namespace althing::protocol::wire
