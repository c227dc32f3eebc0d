// The streaming parser where the shared cases end: every kind of error and what comes after it, bytes held back and released, unknown ids, and
// content that does not depend on how its text was cut into tokens.
#include "protocol/harmony/parser.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "protocol/tokenizer/utf8.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::harmony {
namespace {

using tests::ids;
using tests::must;
using tests::o200k_format;
using tests::text_of;
using tests::tiny_format;

constexpr TokenId unknown_id = 4'294'967'295u;

StreamableParser parser_of(std::optional<Role> role = {}, bool strict = true) { return {o200k_format(), role, strict}; }

// Feeds text with control tokens; the kinds of the errors in order, each with the number of tokens it came after.
std::vector<std::string> feed(StreamableParser& parser, std::string_view text) {
  std::vector<std::string> errors;
  for (const TokenId token : ids(o200k_format(), text)) {
    const Status status = parser.process(token);
    if (status) continue;
    EXPECT_EQ(status.error().code, ErrorCode::corrupt);
    errors.push_back(status.error().field);
  }
  return errors;
}

std::vector<std::string> texts(const StreamableParser& parser) {
  std::vector<std::string> list;
  for (const Message& message : parser.messages()) list.push_back(text_of(message));
  return list;
}

TokenId byte_token(const Format& format, unsigned char byte) {
  for (TokenId token = 0; token < 256; ++token)
    if (format.tokenizer->bytes_of(token) == std::string_view(reinterpret_cast<const char*>(&byte), 1)) return token;
  ADD_FAILURE() << "no token for byte " << int(byte);
  return 0;
}

TEST(HarmonyParser, kinds_of_errors) {
  auto parser = parser_of();
  EXPECT_THAT(feed(parser, "x"), testing::ElementsAre("unexpected_token"));
  EXPECT_THAT(feed(parser, "<|start|>robot<|message|>"), testing::ElementsAre("unknown_role"));
  EXPECT_THAT(feed(parser, "<|start|><|message|>"), testing::ElementsAre("missing_role"));
  EXPECT_THAT(feed(parser, "<|start|>user<|channel|><|message|>"), testing::ElementsAre("empty_channel"));
  EXPECT_THAT(feed(parser, "<|start|>user to=a to=b<|message|>"), testing::ElementsAre("header_leftover"));
  EXPECT_TRUE(parser.process(o200k_format().start));
  EXPECT_TRUE(parser.process(unknown_id));
  const Status undecodable = parser.process(o200k_format().message);
  ASSERT_FALSE(undecodable);
  EXPECT_EQ(undecodable.error().field, "header_not_utf8");
  EXPECT_EQ(undecodable.error().message, "could not decode header");
  EXPECT_TRUE(parser.process(o200k_format().start));
  const Status end = parser.finish();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().field, "eos_in_header");
  EXPECT_EQ(parser.state(), StreamableParser::State::header);
}

TEST(HarmonyParser, the_next_start_resynchronises_after_every_error) {
  for (const char* broken : {"stray words", "<|end|>", "<|start|>robot<|message|>lost<|end|>", "<|start|><|message|>lost<|end|>",
                             "<|start|>user<|channel|><|message|>lost<|end|>", "<|start|>user a b c d<|message|>lost<|end|>"}) {
    auto parser = parser_of();
    EXPECT_THAT(feed(parser, broken), testing::Not(testing::IsEmpty())) << broken;
    EXPECT_EQ(parser.state(), StreamableParser::State::expect_start) << broken;
    EXPECT_THAT(feed(parser, "<|start|>assistant<|channel|>final<|message|>found<|end|>"), testing::IsEmpty()) << broken;
    EXPECT_THAT(texts(parser), testing::ElementsAre("found")) << broken;
  }
}

TEST(HarmonyParser, a_pending_role_survives_a_broken_header_and_is_used_once) {
  auto parser = parser_of(Role::assistant);
  EXPECT_THAT(feed(parser, "<|channel|><|message|>"), testing::ElementsAre("empty_channel"));
  EXPECT_EQ(parser.current_role(), Role::assistant);
  EXPECT_THAT(feed(parser, "<|start|><|channel|>final<|message|>ok<|end|>"), testing::IsEmpty());
  EXPECT_EQ(parser.current_role(), std::nullopt);
  EXPECT_THAT(feed(parser, "<|start|><|channel|>final<|message|>"), testing::ElementsAre("missing_role"));
  ASSERT_THAT(texts(parser), testing::ElementsAre("ok"));
  EXPECT_EQ(parser.messages()[0].role, Role::assistant);
}

TEST(HarmonyParser, all_tokens_are_kept_even_those_that_failed) {
  auto parser = parser_of();
  const auto fed = ids(o200k_format(), "x<|start|>user<|message|>a<|end|>y");
  for (const TokenId token : fed) (void)parser.process(token).ok();
  EXPECT_EQ(std::vector<TokenId>(parser.tokens().begin(), parser.tokens().end()), fed);
}

TEST(HarmonyParser, strict_takes_stop_tokens_into_the_header) {
  auto parser = parser_of(Role::assistant);
  EXPECT_THAT(feed(parser, "<|channel|>final oops<|end|><|message|>"), testing::IsEmpty());
  EXPECT_EQ(parser.current_recipient(), "oops<|end|>");
}

TEST(HarmonyParser, not_strict_saves_the_words_of_the_pending_message_only) {
  auto parser = parser_of(Role::assistant, false);
  EXPECT_THAT(feed(parser, "<|channel|>analysis  to=x \n words<|end|>"), testing::IsEmpty());
  EXPECT_THAT(texts(parser), testing::ElementsAre("to=x words"));
  EXPECT_EQ(parser.messages()[0].channel, "analysis");
  EXPECT_FALSE(parser.messages()[0].recipient);
  EXPECT_THAT(feed(parser, "<|start|>assistant<|channel|>final lost<|return|>"), testing::IsEmpty());
  EXPECT_THAT(texts(parser), testing::SizeIs(1));
  EXPECT_EQ(parser.state(), StreamableParser::State::expect_start);

  auto empty = parser_of(Role::assistant, false);
  EXPECT_THAT(feed(empty, "<|end|>"), testing::IsEmpty());
  EXPECT_THAT(texts(empty), testing::IsEmpty());
  EXPECT_EQ(empty.current_role(), std::nullopt);
}

TEST(HarmonyParser, not_strict_errors_leave_it_usable) {
  auto parser = parser_of(Role::assistant, false);
  EXPECT_THAT(feed(parser, "<|channel|><|end|>"), testing::ElementsAre("empty_channel"));
  EXPECT_TRUE(parser.process(o200k_format().start));
  EXPECT_TRUE(parser.process(unknown_id));
  const Status unknown = parser.process(o200k_format().end);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "Invalid token for decoding: 4294967295");
  EXPECT_TRUE(parser.process(o200k_format().start));
  EXPECT_TRUE(parser.process(byte_token(o200k_format(), 0xE2)));
  const Status cut = parser.process(o200k_format().call);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().field, "invalid_utf8");
  EXPECT_THAT(cut.error().message, testing::StartsWith("Invalid utf-8 sequence"));
  EXPECT_THAT(feed(parser, "<|start|><|channel|>final<|message|>ok<|end|>"), testing::IsEmpty());
  EXPECT_THAT(texts(parser), testing::ElementsAre("ok"));
}

TEST(HarmonyParser, control_tokens_inside_content_are_text) {
  auto parser = parser_of();
  EXPECT_THAT(feed(parser, "<|start|>assistant<|message|>a<|start|><|channel|><|message|><|constrain|><|endoftext|>b<|end|>"), testing::IsEmpty());
  EXPECT_THAT(texts(parser), testing::ElementsAre("a<|start|><|channel|><|message|><|constrain|><|endoftext|>b"));
}

TEST(HarmonyParser, every_stop_token_and_the_end_of_the_stream_complete_a_message) {
  for (const char* stop : {"<|end|>", "<|return|>", "<|call|>", ""}) {
    auto parser = parser_of();
    feed(parser, std::string("<|start|>assistant<|message|>x") + stop);
    EXPECT_TRUE(parser.finish());
    EXPECT_TRUE(parser.finish());
    EXPECT_THAT(texts(parser), testing::ElementsAre("x")) << stop;
  }
}

TEST(HarmonyParser, bytes_that_never_became_a_character_are_flushed_and_do_not_leak) {
  auto parser = parser_of();
  feed(parser, "<|start|>assistant<|message|>a");
  for (const char byte : std::string("\xF0\x9F\x92")) {
    EXPECT_TRUE(parser.process(byte_token(o200k_format(), static_cast<unsigned char>(byte))));
    EXPECT_EQ(parser.last_content_delta(), std::nullopt);
  }
  EXPECT_EQ(parser.current_content(), "a");
  feed(parser, "<|end|><|start|>assistant<|message|>");
  EXPECT_TRUE(parser.process(byte_token(o200k_format(), 0x96)));
  feed(parser, "<|end|>");
  EXPECT_THAT(texts(parser), testing::ElementsAre("a\uFFFD", "\uFFFD"));
}

TEST(HarmonyParser, a_step_replaces_one_invalid_sequence_and_keeps_what_follows) {
  auto parser = parser_of();
  feed(parser, "<|start|>assistant<|message|>");
  const auto deltas = [&](std::initializer_list<int> bytes) {
    std::vector<std::string> list;
    for (const int byte : bytes) {
      EXPECT_TRUE(parser.process(byte_token(o200k_format(), static_cast<unsigned char>(byte))));
      list.push_back(parser.last_content_delta().value_or("-"));
    }
    return list;
  };
  // E2 82 is cut off by 41: one U+FFFD, and the A waits for the next token.
  EXPECT_THAT(deltas({0xE2, 0x82, 0x41, 0x42}), testing::ElementsAre("-", "-", "\uFFFD", "AB"));
  EXPECT_THAT(deltas({0x80, 0xC0, 0x43}), testing::ElementsAre("\uFFFD", "\uFFFD", "C"));
  EXPECT_EQ(parser.current_content(), "\uFFFDAB\uFFFD\uFFFDC");
}

TEST(HarmonyParser, an_unknown_id_stops_decoding_until_the_message_ends) {
  auto parser = parser_of();
  feed(parser, "<|start|>assistant<|message|>a");
  EXPECT_TRUE(parser.process(byte_token(o200k_format(), 0xE2)));
  EXPECT_TRUE(parser.process(unknown_id));
  EXPECT_EQ(parser.last_content_delta(), std::nullopt);
  feed(parser, "lost");
  EXPECT_EQ(parser.last_content_delta(), std::nullopt);
  EXPECT_EQ(parser.current_content(), "a");
  feed(parser, "<|end|><|start|>assistant<|message|>b<|end|>");
  EXPECT_THAT(texts(parser), testing::ElementsAre("a\uFFFD\uFFFD", "b"));
}

// Everything that a message of these tokens shows on the way, and what comes out of it.
struct Streamed {
  std::string deltas;
  std::string content;
};

Streamed stream(const Format& format, const std::vector<TokenId>& content) {
  StreamableParser parser(format, Role::assistant);
  EXPECT_TRUE(parser.process(format.message));
  Streamed streamed;
  for (const TokenId token : content) {
    EXPECT_TRUE(parser.process(token));
    streamed.deltas += parser.last_content_delta().value_or("");
    EXPECT_EQ(parser.current_content(), streamed.deltas);
  }
  EXPECT_TRUE(parser.finish());
  EXPECT_EQ(parser.messages().size(), 1u);
  streamed.content = text_of(parser.messages()[0]);
  return streamed;
}

TEST(HarmonyParser, content_does_not_depend_on_how_text_was_cut_into_tokens) {
  const std::string text = "Grüße, 東京! 👨‍👩‍👧‍👦 {\"a\": [1, 2]}\r\n\tend 💖";
  const Format& format = tiny_format();
  std::vector<TokenId> bytes;
  for (const char c : text) bytes.push_back(byte_token(format, static_cast<unsigned char>(c)));
  for (const auto& tokens : {bytes, format.tokenizer->encode(text)}) {
    const Streamed streamed = stream(format, tokens);
    EXPECT_EQ(streamed.deltas, text);
    EXPECT_EQ(streamed.content, text);
  }
}

TEST(HarmonyParser, any_tokens_give_the_lossy_decoding_of_their_bytes) {
  const Format& format = tiny_format();
  std::mt19937 random(20'250'805);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> tokens(random() % 40);
    // Single bytes come often, so that characters are cut and begun again.
    for (TokenId& token : tokens) {
      const unsigned long ids = random() % 4 == 0 ? 2283 : 256;
      token = static_cast<TokenId>(random() % ids);
    }
    const std::string bytes = must(format.tokenizer->decode(tokens));
    std::string storage;
    const Streamed streamed = stream(format, tokens);
    EXPECT_EQ(streamed.content, valid_utf8(bytes, storage)) << "round " << round;
    EXPECT_TRUE(streamed.content.starts_with(streamed.deltas)) << "round " << round;
  }
}

TEST(HarmonyParser, a_long_run_of_invalid_bytes_takes_linear_time) {
  // Each of these tokens holds two stray bytes and each step replaces one, so half of them wait; moving them at every step would be quadratic.
  const TokenId stray = 2203;
  ASSERT_EQ(o200k_format().tokenizer->bytes_of(stray), "\x82\xac");
  constexpr std::size_t count = 200'000;
  StreamableParser parser(o200k_format(), Role::assistant);
  ASSERT_TRUE(parser.process(o200k_format().message));
  for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(parser.process(stray));
  ASSERT_TRUE(parser.finish());
  EXPECT_EQ(text_of(parser.messages()[0]).size(), 2 * 3 * count);
}

TEST(HarmonyParser, state_as_json) {
  auto parser = parser_of();
  EXPECT_EQ(parser.state_json(), R"({"state":"ExpectStart"})");
  feed(parser, "<|start|>assistant");
  EXPECT_EQ(parser.state_json(), R"({"state":"Header","header_tokens":[173781]})");
  feed(parser, " to=functions.f<|channel|>commentary<|constrain|>json<|message|>{}");
  EXPECT_EQ(parser.state_json(), R"({"state":"Content","header":{"author":{"role":"assistant"},"recipient":"functions.f","channel":"commentary",)"
                                 R"("content_type":"<|constrain|>json"},"content_tokens":[12083]})");
  feed(parser, "<|end|><|start|>functions.f to=assistant<|message|>");
  EXPECT_EQ(parser.state_json(), R"({"state":"Content","header":{"author":{"role":"tool","name":"functions.f"},"recipient":"assistant",)"
                                 R"("channel":null,"content_type":null},"content_tokens":[]})");
}

TEST(HarmonyParser, parse_messages_stops_at_the_first_error) {
  const auto wrong = parse_messages(o200k_format(), ids(o200k_format(), "<|message|>a<|end|>b"), Role::assistant);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().field, "unexpected_token");
  const auto right = parse_messages(o200k_format(), ids(o200k_format(), "<|message|>a<|end|>"), Role::assistant);
  ASSERT_TRUE(right);
  EXPECT_EQ(right->size(), 1u);
}

}  // namespace
}  // namespace althing::protocol::harmony
