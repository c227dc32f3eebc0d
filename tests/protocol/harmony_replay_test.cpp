// Messages that carry the ids that their model generated: what a prompt makes of them, and what is refused because it is not this message.
#include "protocol/harmony/replay.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/harmony/render.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::harmony {
namespace {

using testing::HasSubstr;
using tests::ids;
using tests::must;

const Format& format() { return tests::tiny_format(); }

constexpr const char* call_ids = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>";
constexpr const char* final_ids = "<|channel|>final<|message|>It is 7.<|return|>";

Message generated(std::string_view text) { return must(message_of_ids(format(), ids(format(), text))); }

std::string rendered(const std::vector<Message>& messages, AnalysisHistory policy = AnalysisHistory::drop_finished_turns) {
  return must(format().tokenizer->decode(must(render_conversation(format(), {messages}, {policy})).tokens));
}

Message user(const char* text) { return {Role::user, {}, {}, {}, {}, {TextContent{text}}}; }

TEST(HarmonyReplay, a_generated_message_is_what_clients_were_told) {
  const Message call = generated(call_ids);
  EXPECT_EQ(call.role, Role::assistant);
  EXPECT_EQ(call.channel, "commentary");
  EXPECT_EQ(call.recipient, "functions.f");
  EXPECT_EQ(call.content_type, "<|constrain|>json");
  EXPECT_EQ(tests::text_of(call), "{\"a\":1}");
  EXPECT_EQ(call.tokens, ids(format(), call_ids));
  EXPECT_FALSE(generated(final_ids).recipient);
  EXPECT_FALSE(generated("<|message|>bare<|end|>").channel);
}

TEST(HarmonyReplay, the_prompt_repeats_the_ids_and_not_the_renderers_order_of_the_header) {
  Message call = generated(call_ids);
  EXPECT_EQ(rendered({call}), std::string("<|start|>assistant") + call_ids);
  call.tokens.clear();
  EXPECT_EQ(rendered({call}), "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"a\":1}<|call|>");
  // "It" and " is" as five tokens, which no encoder would make of them.
  std::vector<TokenId> odd = ids(format(), "<|channel|>final<|message|>");
  for (const char* letter : {"I", "t", " ", "i", "s"}) odd.push_back(ids(format(), letter).at(0));
  odd.push_back(format().end);
  const auto prompt = must(render_for_completion(format(), {{user("q"), must(message_of_ids(format(), odd)), user("r")}}, Role::assistant, {}));
  EXPECT_NE(std::search(prompt.tokens.begin(), prompt.tokens.end(), odd.begin(), odd.end()), prompt.tokens.end());
  EXPECT_EQ(prompt.boundaries.size(), 3U);
}

TEST(HarmonyReplay, what_stopped_the_generation_becomes_the_end_that_history_has) {
  const auto end_of = [](std::string_view text) { return must(replayed(format(), generated(text))).back(); };
  EXPECT_EQ(end_of(final_ids), format().end);
  EXPECT_EQ(end_of(call_ids), format().call);
  EXPECT_EQ(end_of("<|channel|>analysis<|message|>a<|end|>"), format().end);
  EXPECT_EQ(end_of("<|channel|>commentary to=functions.f<|message|>{}<|return|>"), format().call);
  EXPECT_EQ(end_of("<|channel|>commentary to=functions.f<|message|>{}<|end|>"), format().end) << "the model wrote it and went on";
  EXPECT_EQ(end_of("<|channel|>final<|message|>a<|call|>"), format().end);
}

TEST(HarmonyReplay, the_opening_may_stand_in_front) {
  const Message bare = generated(final_ids), opened = generated(std::string("<|start|>assistant") + final_ids);
  EXPECT_EQ(bare.tokens, opened.tokens);
  Message message = bare;
  message.tokens = ids(format(), std::string("<|start|>assistant") + final_ids);
  EXPECT_EQ(must(replayed(format(), message)), must(replayed(format(), bare)));
}

TEST(HarmonyReplay, finished_turns_lose_their_reasoning_all_the_same) {
  const std::vector<Message> turn = {user("q"), generated("<|channel|>analysis<|message|>a<|end|>"), generated(final_ids)};
  EXPECT_THAT(rendered(turn), testing::Not(HasSubstr("analysis")));
  EXPECT_THAT(rendered(turn, AnalysisHistory::keep),
              HasSubstr("<|start|>assistant<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final"));
  EXPECT_EQ(must(render_for_training(format(), {turn}, {})).tokens.back(), format().return_);
}

TEST(HarmonyReplay, ids_that_are_not_one_whole_message_are_refused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"<|channel|>final<|message|>cut", "up to the token that ended it"},
      {"<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|end|>", "one message"},
      {"<|channel|>final<|message|>a<|end|>more", "no further"},
      {"<|endoftext|><|start|>assistant<|message|>a<|end|>", "one message"},
      {"<|channel|><|start|>assistant<|message|>a<|end|>", "message"},
      {"<|end|>", "not one message"},
      {"<|channel|>final text<|end|>", "missing_message"},
      {"<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b<|end|>", "missing_end"},
      {"<|channel|>final<|message|>a<|endoftext|>b<|end|>", "missing_start"},
      {"<|channel|>commentary?<|message|>a<|end|>", "unread_words"},
      {"assistant<|channel|>final<|message|>a<|end|>", "doubled_role"},
      {"<|start|>user<|message|>a<|end|>", "well-formed"},
  };
  for (const auto& [text, why] : wrong) {
    const auto message = message_of_ids(format(), ids(format(), text));
    ASSERT_FALSE(message) << text;
    EXPECT_EQ(message.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(message.error().field, "tokens");
    EXPECT_THAT(message.error().message, HasSubstr(why)) << text;
  }
  EXPECT_THAT(message_of_ids(format(), {}).error().message, HasSubstr("up to the token that ended it"));
  EXPECT_THAT(message_of_ids(format(), std::vector<TokenId>{4'000'000'000U, format().end}).error().message, HasSubstr("4000000000"));
}

TEST(HarmonyReplay, ids_of_another_message_are_refused_by_the_member_that_differs) {
  const auto refused = [](const auto& change) {
    Message message = generated(call_ids);
    change(message);
    const auto replay = replayed(format(), message);
    EXPECT_FALSE(replay);
    return replay ? "" : replay.error().message;
  };
  EXPECT_THAT(refused([](Message& m) { m.channel = "final"; }), HasSubstr("whose channel is 'commentary', and this one's is 'final'"));
  EXPECT_THAT(refused([](Message& m) { m.recipient.reset(); }), HasSubstr("whose recipient is 'functions.f', and this one's is none"));
  EXPECT_THAT(refused([](Message& m) { m.content_type = "json"; }), HasSubstr("whose content_type is '<|constrain|>json'"));
  EXPECT_THAT(refused([](Message& m) { m.content = {TextContent{"{}"}}; }), HasSubstr("another text"));
  EXPECT_THAT(refused([](Message& m) { m.content = {DeveloperContent{}}; }), HasSubstr("no text"));
  EXPECT_THAT(refused([](Message& m) { m.role = Role::user; }), HasSubstr("only a message of the assistant"));
  EXPECT_THAT(refused([](Message& m) { m.name = "bob"; }), HasSubstr("without a name"));
  Message parts = generated(call_ids);
  parts.content = {TextContent{"{\"a\""}, TextContent{":1}"}};
  EXPECT_TRUE(replayed(format(), parts)) << "in how many parts is the client's business";
}

TEST(HarmonyReplay, every_message_is_checked_also_one_that_the_prompt_leaves_out) {
  std::vector<Message> turn = {user("q"), generated("<|channel|>analysis<|message|>a<|end|>"), generated(final_ids)};
  EXPECT_TRUE(check_replays(format(), turn));
  turn[1].content = {TextContent{"b"}};
  EXPECT_TRUE(render_conversation(format(), {turn}, {})) << "it is left out";
  const auto checked = check_replays(format(), turn);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().field, "messages[1].tokens");
  EXPECT_THAT(checked.error().message, testing::StartsWith("messages[1]: "));
  const auto kept = render_conversation(format(), {turn}, {AnalysisHistory::keep});
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().field, "messages[1].tokens");
}

TEST(HarmonyReplay, bytes_that_are_no_text_are_compared_as_clients_were_told_of_them) {
  std::vector<TokenId> broken = ids(format(), "<|channel|>final<|message|>");
  // The first two bytes of a character of three.
  for (const TokenId id : format().tokenizer->encode("漢")) broken.push_back(id);
  broken.pop_back();
  broken.push_back(format().return_);
  if (const auto message = message_of_ids(format(), broken); message) {
    EXPECT_THAT(tests::text_of(*message), testing::AnyOf(HasSubstr("\uFFFD"), testing::IsEmpty()));
    EXPECT_TRUE(replayed(format(), *message));
  }
}

// Whatever the tiny model was taught to say can be said again: each message of it, cut behind its stop.
TEST(HarmonyReplay, all_that_a_stream_tells_can_be_sent_back) {
  for (const char* text : {"<|channel|>analysis<|message|>a<|end|>", call_ids, final_ids, "<|channel|>final json<|message|>{}<|return|>",
                           "<|channel|>commentary to=functions.f code<|message|>x<|call|>", "<|channel|>analysis to=python code<|message|>x<|call|>",
                           " to=functions.f<|channel|>commentary<|message|>{}<|call|>", "<|channel|>final<|message|><|return|>"}) {
    wire::DeltaStream stream(format());
    std::vector<wire::DeltaEvent> events;
    Message told;
    told.role = Role::assistant;
    told.tokens = ids(format(), text);
    for (const TokenId id : told.tokens) stream.push(id, events);
    std::string content;
    for (const auto& event : events) {
      if (const auto* more = std::get_if<wire::Text>(&event)) content += more->text;
      if (const auto* started = std::get_if<wire::MessageStarted>(&event))
        told.channel = started->channel, told.recipient = started->recipient, told.content_type = started->content_type;
    }
    told.content = {TextContent{content}};
    const auto replay = replayed(format(), told);
    EXPECT_TRUE(replay) << text << ": " << (replay ? "" : replay.error().message);
  }
}

}  // namespace
}  // namespace althing::protocol::harmony
