// Generated ids to typed deltas: real conversations of the tiny model come out with their channels, and what no parser understands is not lost.
#include "protocol/wire/delta_stream.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace althing::protocol::wire {
namespace {

struct Heard {
  std::string channel, recipient, text;
  bool ended = false;
};

class DeltaStreamTest : public testing::Test {
 protected:
  static harmony::Format format() {
    static const auto tokenizer = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    return *harmony::Format::of(*tokenizer);
  }

  static std::vector<Heard> hear(std::vector<TokenId> tokens) {
    DeltaStream stream(format());
    std::vector<DeltaEvent> events;
    for (const TokenId token : tokens) stream.push(token, events);
    stream.finish(events);
    std::vector<Heard> heard;
    for (const DeltaEvent& event : events) {
      if (const auto* started = std::get_if<MessageStarted>(&event)) {
        EXPECT_EQ(started->index, heard.size());
        heard.push_back({started->channel, started->recipient, "", false});
      } else if (const auto* text = std::get_if<Text>(&event)) {
        EXPECT_EQ(text->index + 1, heard.size());
        EXPECT_FALSE(text->text.empty());
        heard.back().text += text->text;
      } else {
        EXPECT_EQ(std::get<MessageEnded>(event).index + 1, heard.size());
        heard.back().ended = true;
      }
    }
    return heard;
  }

  static std::vector<TokenId> tokens(std::string_view text) { return format().tokenizer->encode_with_special(text); }
};

TEST_F(DeltaStreamTest, counts_the_tokens_of_reasoning_and_of_calls) {
  const auto count = [](std::string_view text) {
    DeltaStream stream(format());
    std::vector<DeltaEvent> events;
    for (const TokenId token : tokens(text)) stream.push(token, events);
    return stream.reasoning_tokens();
  };
  const auto plain = [](std::string_view text) { return static_cast<std::uint32_t>(format().tokenizer->encode(text).size()); };
  // <|message|> opens it, <|end|> does not leave it open.
  EXPECT_EQ(count("<|channel|>analysis<|message|>so it is<|end|>"), 1 + plain("so it is"));
  EXPECT_EQ(count("<|channel|>final<|message|>yes<|return|>"), 0U);
  EXPECT_EQ(count("<|channel|>commentary<|message|>I look<|end|>"), 0U);
  EXPECT_EQ(count("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"), 1 + plain("{}"));
}

TEST_F(DeltaStreamTest, completions_of_the_tiny_model_keep_every_word_and_channel) {
  std::ifstream input(ALTHING_SOURCE_DIR "/examples/models/tiny/conversations.jsonl");
  int lines = 0;
  for (std::string line; std::getline(input, line); ++lines) {
    const auto json = nlohmann::json::parse(line);
    const auto heard = hear(json["completion_ids"].get<std::vector<TokenId>>());
    std::string together;
    for (const Heard& message : heard) {
      EXPECT_TRUE(message.ended);
      EXPECT_TRUE(message.channel == "analysis" || message.channel == "commentary" || message.channel == "final") << line;
      together += message.text;
    }
    // Everything between <|message|> and the next control token of the completion's text is some message's content.
    std::string expected;
    const std::string text = json["completion_text"];
    for (std::size_t at = text.find("<|message|>"); at != std::string::npos; at = text.find("<|message|>", at)) {
      at += 11;
      const std::size_t end = text.find("<|", at);
      expected += text.substr(at, end == std::string::npos ? end : end - at);
    }
    EXPECT_EQ(together, expected) << line;
  }
  EXPECT_EQ(lines, 200);
}

TEST_F(DeltaStreamTest, a_tool_call_names_its_recipient) {
  const auto heard = hear(tokens("<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\":1}<|call|>"));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].channel, "commentary");
  EXPECT_EQ(heard[0].recipient, "functions.add");
  EXPECT_EQ(heard[0].text, "{\"a\":1}");
}

TEST_F(DeltaStreamTest, a_message_cut_by_the_token_limit_ends) {
  const auto heard = hear(tokens("<|channel|>final<|message|>Half a sent"));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].text, "Half a sent");
  EXPECT_TRUE(heard[0].ended);
}

TEST_F(DeltaStreamTest, text_without_any_markup_is_not_lost) {
  const auto heard = hear(tokens("I cannot help with that.<|end|><|start|>assistant<|channel|>final<|message|>Sorry.<|return|>"));
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0].text, "I cannot help with that.");
  EXPECT_EQ(heard[1].channel, "final");
  EXPECT_EQ(heard[1].text, "Sorry.");
}

TEST_F(DeltaStreamTest, stray_words_between_messages_are_not_lost) {
  const auto heard = hear(tokens("<|channel|>analysis<|message|>a<|end|>stray words<|start|>assistant<|channel|>final<|message|>b<|return|>"));
  ASSERT_EQ(heard.size(), 3U);
  EXPECT_EQ(heard[1].text, "stray words");
  EXPECT_EQ(heard[1].channel, "");
  EXPECT_EQ(heard[2].text, "b");
}

TEST_F(DeltaStreamTest, a_second_stop_token_is_ignored) {
  const auto heard = hear(tokens("<|channel|>final<|message|>b<|end|><|return|>"));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].text, "b");
}

TEST_F(DeltaStreamTest, control_tokens_in_any_order_never_crash_and_every_message_ends) {
  const harmony::Format f = format();
  const std::vector<TokenId> alphabet{f.start, f.end, f.message, f.channel, f.constrain, f.call, f.return_, f.endoftext, 65, 300, 9999};
  std::uint64_t state = 1;
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 24; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      ids.push_back(alphabet[(state >> 33) % alphabet.size()]);
    }
    for (const Heard& message : hear(ids)) EXPECT_TRUE(message.ended);
  }
}

}  // namespace
}  // namespace althing::protocol::wire
