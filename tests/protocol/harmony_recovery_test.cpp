// Malformed output of models becomes messages: known malformations one by one, then any ids in any order. Well-formed output is what the exact parser
// says it is.
#include "protocol/harmony/recovery.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "protocol/harmony/parser.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/tokenizer/utf8.hpp"
#include "tests/protocol/harmony_random.hpp"

namespace althing::protocol::harmony {
namespace {

using tests::o200k_format;

struct Heard {
  Role role = Role::assistant;
  std::string channel, recipient, content_type, text;

  friend bool operator==(const Heard&, const Heard&) = default;
  friend void PrintTo(const Heard& h, std::ostream* out) {
    *out << name_of(h.role) << " channel '" << h.channel << "' to '" << h.recipient << "' type '" << h.content_type << "': " << h.text;
  }
};
using Repairs = std::map<std::string_view, std::uint32_t>;

struct Outcome {
  std::vector<Heard> messages;
  Repairs repairs;
};

Outcome recover(const std::vector<TokenId>& tokens) {
  RecoveringParser parser(o200k_format());
  std::vector<RecoveredEvent> events;
  for (const TokenId token : tokens) parser.push(token, events);
  parser.finish(events);
  Outcome outcome;
  for (const RecoveredEvent& event : events) {
    if (const auto* start = std::get_if<RecoveredStart>(&event)) {
      outcome.messages.push_back({start->role, start->channel, start->recipient, start->content_type, ""});
    } else if (const auto* text = std::get_if<RecoveredText>(&event)) {
      outcome.messages.back().text += text->text;
    }
  }
  for (std::size_t kind = 0; kind < repair_kinds; ++kind)
    if (parser.repairs()[kind] > 0) outcome.repairs[name_of(static_cast<Repair>(kind))] = parser.repairs()[kind];
  return outcome;
}

struct Case {
  const char* what;
  const char* text;  // with control tokens by name
  std::vector<Heard> messages;
  Repairs repairs;
};

Heard analysis(const char* text) { return {Role::assistant, "analysis", "", "", text}; }
Heard final(const char* text) { return {Role::assistant, "final", "", "", text}; }
Heard plain(const char* text) { return {Role::assistant, "", "", "", text}; }
Heard call(const char* text, const char* type = "json", const char* channel = "commentary") {
  return {Role::assistant, channel, "functions.f", type, text};
}

const Case cases[] = {
    {"nothing to mend",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {}},
    {"a refusal without a header",
     "I can't help.<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
     {plain("I can't help."), final("b")},
     {{"missing_message", 1}}},
    {"no markup at all", "Hello there.", {plain("Hello there.")}, {{"missing_message", 1}}},
    {"no <|message|>",
     "<|channel|>analysis some thoughts<|end|><|start|>assistant<|channel|>final {\"x\": 1}<|return|>",
     {analysis("some thoughts"), final("{\"x\": 1}")},
     {{"missing_message", 2}}},
    {"text glued to the channel", "<|channel|>final__HANDOFF__<|return|>", {final("__HANDOFF__")}, {{"missing_message", 1}}},
    {"words between messages",
     "<|channel|>analysis<|message|>a<|end|>stray words<|start|>assistant<|channel|>final<|message|>b<|return|>",
     {analysis("a"), plain("stray words"), final("b")},
     {{"missing_start", 1}, {"missing_message", 1}, {"missing_end", 1}}},
    {"a second stop token", "<|channel|>final<|message|>b<|end|><|return|>", {final("b")}, {{"stray_stop", 1}}},
    {"no <|start|>",
     "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {{"missing_start", 1}}},
    {"<|start|> twice",
     "<|channel|>analysis<|message|>a<|end|><|start|><|start|>assistant<|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {{"doubled_start", 1}}},
    {"the role twice",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistantassistant<|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {{"doubled_role", 1}}},
    {"the recipient twice", "<|channel|>commentary to=functions.f to=functions.f<|message|>{}<|call|>", {call("{}", "")}, {{"doubled_recipient", 1}}},
    {"a channel name with more", "<|channel|>commentary?<|message|>a<|end|>", {{Role::assistant, "commentary", "", "", "?a"}}, {{"unread_words", 1}}},
    {"a channel that is not one", "<|channel|>thoughts<|message|>a<|end|>", {{Role::assistant, "thoughts", "", "", "a"}}, {{"unknown_channel", 1}}},
    {"no channel name", "<|channel|>?!<|message|>a<|end|>", {plain("?!a")}, {{"unread_words", 1}}},
    {"the channel twice, behind the recipient",
     " to=functions.f<|channel|>commentary<|channel|>commentary json<|message|>{}<|call|>",
     {call("{}")},
     {{"doubled_channel", 1}}},
    {"a type is no recipient",
     "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
     {{Role::assistant, "final", "", "<|constrain|>json", "{}"}},
     {}},
    {"a bare type is no recipient", "<|channel|>final json<|message|>{}<|return|>", {{Role::assistant, "final", "", "json", "{}"}}, {}},
    {"a call on analysis", "<|channel|>analysis to=functions.f code<|message|>{}<|call|>", {call("{}", "code", "analysis")}, {}},
    {"a bare recipient", " to=f<|channel|>commentary json<|message|>{}<|call|>", {{Role::assistant, "commentary", "f", "json", "{}"}}, {}},
    {"words beside a recipient are no arguments",
     "<|channel|>commentary to=functions.f json and more<|message|>{}<|call|>",
     {plain("and more"), call("{}")},
     {{"unread_words", 1}}},
    {"a message inside another",
     "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {{"missing_end", 1}}},
    {"a channel inside a message",
     "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
     {analysis("a"), final("b")},
     {{"missing_end", 1}}},
    {"a stray <|message|>", "<|channel|>final<|message|>a<|message|>b<|return|>", {final("ab")}, {{"stray_control", 1}}},
    {"a call cut by the limit",
     "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{\"a\":",
     {call("{\"a\":", "<|constrain|>json")},
     {}},
    {"a tool's answer that the model made up",
     "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>42<|end|>",
     {call("{}", ""), {Role::tool, "commentary", "assistant", "", "42"}},
     {}},
    {"words before the channel",
     "I think<|channel|>final<|message|>b<|return|>",
     {plain("I think"), final("b")},
     {{"missing_message", 1}, {"missing_end", 1}}},
};

TEST(HarmonyRecovery, known_malformations_are_mended) {
  for (const Case& c : cases) {
    const Outcome outcome = recover(o200k_format().tokenizer->encode_with_special(c.text));
    EXPECT_EQ(outcome.messages, c.messages) << c.what;
    EXPECT_EQ(outcome.repairs, c.repairs) << c.what;
  }
}

TEST(HarmonyRecovery, text_that_spells_control_tokens_stays_text) {
  const Format& f = o200k_format();
  std::vector<TokenId> tokens{f.channel};
  const auto append = [&](std::string_view text) {
    const auto more = f.tokenizer->encode(text);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  append("final");
  tokens.push_back(f.message);
  append("write <|start|>assistant<|channel|>final<|message|> yourself");
  tokens.push_back(f.return_);
  const Outcome outcome = recover(tokens);
  ASSERT_EQ(outcome.messages.size(), 1u);
  EXPECT_EQ(outcome.messages[0], final("write <|start|>assistant<|channel|>final<|message|> yourself"));
  EXPECT_TRUE(outcome.repairs.empty());
}

TEST(HarmonyRecovery, a_message_that_forgot_to_say_so_is_not_kept_waiting) {
  RecoveringParser parser(o200k_format());
  std::vector<RecoveredEvent> events;
  std::size_t pushed = 0;
  for (const TokenId token : o200k_format().tokenizer->encode("Hello there, dear reader of these lines.")) {
    parser.push(token, events);
    ASSERT_FALSE(++pushed == 1 && events.empty()) << "the first word cannot begin a header";
  }
  // A header that never ends does not wait for ever either.
  RecoveringParser other(o200k_format());
  events.clear();
  other.push(o200k_format().channel, events);
  for (int i = 0; i < 200; ++i)
    for (const TokenId token : o200k_format().tokenizer->encode(" word")) other.push(token, events);
  EXPECT_FALSE(events.empty());
}

TEST(HarmonyRecovery, a_character_in_several_tokens_is_whole_at_a_messages_begin) {
  const Outcome outcome = recover({31446, 244});
  ASSERT_EQ(outcome.messages.size(), 1u);
  EXPECT_EQ(outcome.messages[0].text, "\xF0\x9F\x92\x96");
  const Outcome unknown = recover({o200k_format().tokenizer->vocabulary_size() + 3});
  ASSERT_EQ(unknown.messages.size(), 1u);
  EXPECT_EQ(unknown.messages[0].text, "\xEF\xBF\xBD");
  EXPECT_EQ(unknown.repairs.at("unknown_token"), 1u);
}

// Messages as the renderer writes them, with every combination of what an assistant's header can hold.
TEST(HarmonyRecovery, well_formed_output_is_what_the_exact_parser_says) {
  const Format& f = o200k_format();
  std::mt19937_64 random(7);
  const auto one_of = [&](std::vector<const char*> choices) -> std::string { return choices[random() % choices.size()]; };
  for (int round = 0; round < 2000; ++round) {
    Conversation conversation;
    const int count = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < count; ++i) {
      Message m;
      m.role = Role::assistant;
      m.channel = one_of({"analysis", "commentary", "final"});
      if (*m.channel == "commentary" && random() % 2 == 0) {
        m.recipient = one_of({"functions.f", "functions.get_weather", "browser.search", "python"});
        if (random() % 2 == 0) m.content_type = one_of({"json", "code", "<|constrain|>json"});
      }
      m.content.push_back(
          TextContent{one_of({"", "Hello.", "{\"a\": [1, 2]}", "line\n\nline", " leading", "\xF0\x9F\x92\x96 hearts", "to=functions.g <|end|>"})});
      conversation.messages.push_back(std::move(m));
    }
    RenderOptions keep;
    keep.analysis = AnalysisHistory::keep;
    auto tokens = tests::must(render_conversation(f, conversation, keep)).tokens;
    // The prompt ends behind <|start|>assistant.
    ASSERT_EQ(tokens[0], f.start);
    tokens.erase(tokens.begin(), tokens.begin() + 2);
    const auto exact = tests::must(parse_messages(f, tokens, Role::assistant));
    const Outcome outcome = recover(tokens);
    EXPECT_TRUE(outcome.repairs.empty());
    ASSERT_EQ(outcome.messages.size(), exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const Heard expected{exact[i].role, exact[i].channel.value_or(""), exact[i].recipient.value_or(""), exact[i].content_type.value_or(""),
                           std::get<TextContent>(exact[i].content[0]).text};
      EXPECT_EQ(outcome.messages[i], expected) << tests::must(f.tokenizer->decode(tokens));
    }
  }
}

TEST(HarmonyRecovery, any_ids_in_any_order_lose_nothing) {
  tests::HarmonyRandom source(o200k_format());
  std::mt19937_64 random(11);
  for (int round = 0; round < 20000; ++round) {
    const tests::RandomIds made = source.make(random);
    const std::string wrong = tests::wrong_recovery(o200k_format(), made);
    ASSERT_EQ(wrong, "") << "round " << round << ": "
                         << tests::must(o200k_format().tokenizer->decode(
                                std::span(made.ids).first(made.ids.size() - (made.ids.back() >= o200k_format().tokenizer->vocabulary_size()))));
  }
}

}  // namespace
}  // namespace althing::protocol::harmony
