// Streams of bytes in every split come out as one and the same valid UTF-8 text, by the maximal-subpart rule of the Unicode standard.
#include "protocol/tokenizer/detokenizer.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol {
namespace {

std::string replaced(std::string_view bytes) {
  std::string storage;
  return std::string(valid_utf8(bytes, storage));
}

const std::string r(replacement_character);

TEST(TokenizerUtf8, one_replacement_for_each_maximal_subpart) {
  EXPECT_EQ(replaced("plain"), "plain");
  EXPECT_EQ(replaced("a\xFF"
                     "b"),
            "a" + r + "b");
  EXPECT_EQ(replaced("\x80\xBF"), r + r);
  EXPECT_EQ(replaced("\xC0\xAF"), r + r);                  // overlong: neither byte begins a character
  EXPECT_EQ(replaced("\xE0\x9F\xBF"), r + r + r);          // overlong in three bytes
  EXPECT_EQ(replaced("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), r + r + r + r);  // past U+10FFFF
  EXPECT_EQ(replaced("\xF0\x9F\x98"), r);                  // cut off: one subpart
  EXPECT_EQ(replaced("\xF0\x9F\x98"
                     "a"),
            r + "a");
  EXPECT_EQ(replaced("\xE2\x82\xC3\xA9"), r + "é");
  // The example of the standard, table 3-8.
  EXPECT_EQ(replaced("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"), "a" + r + r + r + "b" + r + "c" + r + r + "d");
}

TEST(TokenizerUtf8, validity_of_every_character_and_every_neighbour_of_the_bounds) {
  for (const char* valid :
       {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(replaced(valid), valid);
  for (const char* invalid : {"\xC1\xBF", "\xE0\x9F\x80", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF"})
    EXPECT_EQ(valid_utf8_prefix(invalid), 0u) << invalid;
}

TEST(TokenizerUtf8, taking_what_is_certain_in_any_split_equals_replacing_the_whole) {
  const std::vector<std::string> parts = {"a",    "é",        "漢",   "😀",        "\x80",    "\xE2\x82", "\xF0\x9F", "\xF0\x9F\x98",
                                          "\xC3", "\xED\xA0", "\xFF", "\xF4\x90", "\xE0\x80"};
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (std::size_t i = random() % 8 + 1; i > 0; --i) bytes += parts[random() % parts.size()];
    std::string streamed, pending;
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t length = std::min<std::size_t>(random() % 4 + 1, bytes.size() - begin);
      pending.append(bytes, begin, length);
      begin += length;
      const std::string text = take_certain_utf8(pending);
      ASSERT_EQ(valid_utf8_prefix(text), text.size());
      ASSERT_LE(pending.size(), 3u);
      streamed += text;
    }
    ASSERT_EQ(streamed + replaced(pending), replaced(bytes));
  }
}

class Detokenizing : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    tokenizer_ = *loaded;
    // One token for each byte, whatever its id.
    for (TokenId id = 0; id < tokenizer_->vocabulary_size(); ++id)
      if (const auto bytes = tokenizer_->bytes_of(id); bytes && bytes->size() == 1) byte_tokens_[static_cast<unsigned char>(bytes->front())] = id;
  }

  TokenId byte(unsigned value) const { return byte_tokens_[value]; }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::array<TokenId, 256> byte_tokens_{};
};

TEST_F(Detokenizing, a_character_comes_with_its_last_byte) {
  Detokenizer detokenizer(tokenizer_);
  EXPECT_EQ(detokenizer.push(byte(0xF0)), "");
  EXPECT_EQ(detokenizer.push(byte(0x9F)), "");
  EXPECT_EQ(detokenizer.push(byte(0x98)), "");
  EXPECT_EQ(detokenizer.push(byte(0x80)), "😀");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST_F(Detokenizing, what_cannot_become_a_character_is_replaced_as_soon_as_that_is_certain) {
  Detokenizer detokenizer(tokenizer_);
  EXPECT_EQ(detokenizer.push(byte(0xE2)), "");
  EXPECT_EQ(detokenizer.push(byte(0x82)), "");
  EXPECT_EQ(detokenizer.push(byte('a')), r + "a");
  EXPECT_EQ(detokenizer.push(byte(0x80)), r);
  EXPECT_EQ(detokenizer.push(byte(0xE2)), "");
  EXPECT_EQ(detokenizer.finish(), r);
  EXPECT_EQ(detokenizer.push(byte('b')), "b");  // as new
}

TEST_F(Detokenizing, an_unknown_id_is_one_replacement_and_ends_what_was_pending) {
  Detokenizer detokenizer(tokenizer_);
  EXPECT_EQ(detokenizer.push(4'000'000'000u), r);
  EXPECT_EQ(detokenizer.push(byte(0xE2)), "");
  EXPECT_EQ(detokenizer.push(tokenizer_->vocabulary_size()), r + r);
  EXPECT_EQ(detokenizer.push(byte('x')), "x");
}

TEST_F(Detokenizing, special_tokens_are_their_names) {
  Detokenizer detokenizer(tokenizer_);
  EXPECT_EQ(detokenizer.push(*tokenizer_->special("<|start|>")), "<|start|>");
}

TEST_F(Detokenizing, every_token_of_the_vocabulary_gives_valid_text) {
  Detokenizer detokenizer(tokenizer_);
  std::string streamed, bytes;
  for (TokenId id = 0; id < tokenizer_->vocabulary_size(); ++id) {
    const std::string text = detokenizer.push(id);
    ASSERT_EQ(valid_utf8_prefix(text), text.size()) << id;
    streamed += text;
    bytes += tokenizer_->bytes_of(id).value_or("\xFF");
  }
  EXPECT_EQ(streamed + detokenizer.finish(), replaced(bytes));
}

}  // namespace
}  // namespace althing::protocol
