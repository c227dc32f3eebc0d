// Encoding and decoding: the prompt-injection barrier, round trips, agreement with the slow method, the tiny model's prompts, long runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "protocol/tokenizer/byte_pair_encoding.hpp"
#include "protocol/tokenizer/tokenizer.hpp"
#include "tests/support/sha256.hpp"

namespace althing::protocol {
namespace {

using testing::ElementsAre;
using Ids = std::vector<TokenId>;

class Encoding : public testing::Test {
 protected:
  // Loading 200,000 ranks takes a moment, so the tests share them.
  static void SetUpTestSuite() {
    auto o200k = Tokenizer::from_tiktoken(ALTHING_SOURCE_DIR "/tests/data/o200k_base.tiktoken", Tokenizer::o200k_harmony_special_tokens());
    auto tiny = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    ASSERT_TRUE(o200k.ok()) << o200k.error().message;
    ASSERT_TRUE(tiny.ok()) << tiny.error().message;
    o200k_ = *o200k;
    tiny_ = *tiny;
  }
  static void TearDownTestSuite() {
    o200k_.reset();
    tiny_.reset();
  }

  static std::shared_ptr<const Tokenizer> o200k_, tiny_;
};
std::shared_ptr<const Tokenizer> Encoding::o200k_, Encoding::tiny_;

TEST_F(Encoding, text_never_yields_a_special_token) {
  EXPECT_THAT(o200k_->encode("<|start|>"), ElementsAre(27, 91, 5236, 91, 29));
  for (const auto& tokenizer : {o200k_, tiny_})
    for (TokenId id = 0; id < tokenizer->vocabulary_size(); ++id) {
      if (!tokenizer->is_special(id)) continue;
      const std::string name(*tokenizer->bytes_of(id));
      for (const TokenId token : tokenizer->encode("x" + name + name)) ASSERT_FALSE(tokenizer->is_special(token)) << name;
      ASSERT_EQ(tokenizer->encode_with_special(name), Ids{id});
    }
}

TEST_F(Encoding, special_tokens_of_o200k_harmony) {
  EXPECT_EQ(o200k_->vocabulary_size(), 201088u);
  EXPECT_EQ(o200k_->special("<|start|>"), 200006u);
  EXPECT_EQ(o200k_->special("<|call|>"), 200012u);
  EXPECT_EQ(o200k_->special("<|reserved_200013|>"), 200013u);
  EXPECT_EQ(o200k_->special("<|reserved_201087|>"), 201087u);
  EXPECT_EQ(o200k_->special("<|reserved_201088|>"), std::nullopt);
  EXPECT_EQ(o200k_->special("<|reserved_200006|>"), std::nullopt);
  EXPECT_EQ(o200k_->special("<|reserved_200018|>"), 200018u);
  EXPECT_EQ(o200k_->special("<|endofprompt|>"), 200018u);
  EXPECT_EQ(o200k_->bytes_of(200018), "<|reserved_200018|>");
  EXPECT_FALSE(o200k_->is_special(199997));
  EXPECT_TRUE(o200k_->is_special(199998));
  EXPECT_FALSE(o200k_->is_special(201088));
}

TEST_F(Encoding, special_tokens_where_asked_for) {
  EXPECT_THAT(o200k_->encode_with_special("<|start|>user<|message|>What is 2 + 2?<|end|>"),
              ElementsAre(200006, 1428, 200008, 4827, 382, 220, 17, 659, 220, 17, 30, 200007));
  EXPECT_THAT(o200k_->encode_with_special("<<|end|><|en<|end|>|>"), ElementsAre(27, 200007, 27, 91, 262, 200007, 91, 29));
  EXPECT_TRUE(o200k_->encode_with_special("").empty());
  // What stands before a special token is text that ends there.
  EXPECT_THAT(o200k_->encode_with_special("   <|end|>"), ElementsAre(271, 200007)) << "three spaces at the end of text are one token";
}

TEST(SpecialTokens, leftmost_then_longest) {
  const SpecialTokens specials({{"<a>", 1}, {"<a>b", 2}, {"<a>bcd", 3}, {"a>", 4}, {"\xC3\xA9", 5}});
  const auto match = [&](std::string_view text) {
    const auto found = specials.next(text, 0);
    return found ? std::vector<std::size_t>{found->begin, found->length, found->token} : std::vector<std::size_t>{};
  };
  EXPECT_THAT(match("x<a>"), ElementsAre(1, 3, 1));
  EXPECT_THAT(match("<a>bc"), ElementsAre(0, 4, 2));
  EXPECT_THAT(match("<a>bcd"), ElementsAre(0, 6, 3));
  EXPECT_THAT(match("<<a>x"), ElementsAre(1, 3, 1));
  EXPECT_THAT(match("< a>x"), ElementsAre(2, 2, 4));
  EXPECT_THAT(match("x\xC3\xA9"), ElementsAre(1, 2, 5));
  EXPECT_TRUE(match("<a").empty());
  EXPECT_TRUE(match("").empty());
  EXPECT_FALSE(SpecialTokens().next("anything", 0).has_value());
}

TEST_F(Encoding, invalid_utf8_is_replaced_before_encoding) {
  EXPECT_EQ(o200k_->encode("a\xFF"
                           "b"),
            o200k_->encode("a\uFFFDb"));
  EXPECT_EQ(o200k_->encode("\xF0\x9F\x98"), o200k_->encode("\uFFFD"));
  EXPECT_EQ(o200k_->encode("\xED\xA0\x80"), o200k_->encode("\uFFFD\uFFFD\uFFFD"));
  EXPECT_EQ(o200k_->encode_with_special("\xFF<|end|>"), (Ids{o200k_->encode("\uFFFD").front(), 200007}));
  EXPECT_EQ(o200k_->encode(std::string_view("a\0b", 3)).size(), 3u);
}

TEST_F(Encoding, decoding_gives_back_the_text) {
  std::mt19937 random(42);
  const std::vector<std::string> parts = {"a",  "The ", "QUICK",   " 'll",   "é",  "漢字",         "😀",   "\n", "  ",
                                          "\t", "123",  "<|end|>", "\u0301", "!?", "\xEF\xBB\xBF", "\x01"};
  for (const auto& tokenizer : {o200k_, tiny_})
    for (int round = 0; round < 500; ++round) {
      std::string text;
      for (std::size_t i = random() % 30; i > 0; --i) text += parts[random() % parts.size()];
      const auto plain = tokenizer->decode(tokenizer->encode(text));
      ASSERT_TRUE(plain.ok());
      ASSERT_EQ(*plain, text);
      const auto special = tokenizer->decode(tokenizer->encode_with_special(text));
      ASSERT_TRUE(special.ok());
      ASSERT_EQ(*special, text);
    }
}

TEST_F(Encoding, decoding_an_unknown_id_is_an_error) {
  const auto decoded = o200k_->decode(Ids{1, 201088});
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
  EXPECT_EQ(decoded.error().message, "Invalid token for decoding: 201088");
}

TEST_F(Encoding, the_tiny_models_prompts) {
  std::ifstream lines(ALTHING_SOURCE_DIR "/examples/models/tiny/conversations.jsonl");
  int compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) {
    const auto json = nlohmann::json::parse(line);
    ASSERT_EQ(tiny_->encode_with_special(json.at("prompt_text").get<std::string>()), json.at("prompt_ids").get<Ids>()) << compared;
    const auto completion = tiny_->decode(json.at("completion_ids").get<Ids>());
    ASSERT_TRUE(completion.ok());
    ASSERT_EQ(*completion, json.at("completion_text").get<std::string>()) << compared;
  }
  EXPECT_EQ(compared, 200);
}

// The slow method, straight from the definition: join the leftmost pair of lowest rank until none is left.
Ids merge_slowly(const BytePairEncoding& encoding, std::string_view piece) {
  Ids tokens;
  for (const char c : piece) tokens.push_back(encoding.token_of_byte[static_cast<unsigned char>(c)]);
  for (;;) {
    const Merge* best = nullptr;
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Merge* merge = encoding.merges.find({tokens[i], tokens[i + 1]});
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        best_at = i;
      }
    }
    if (best == nullptr) return tokens;
    tokens[best_at] = best->merged;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(ByteMerging, equals_the_slow_method_for_random_vocabularies) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    BytePairEncoding encoding;
    TokenId next = 0;
    for (int byte = 0; byte < 256; ++byte) ASSERT_TRUE(encoding.tokens.add(next++, std::string(1, static_cast<char>(byte))).ok());
    ASSERT_TRUE(index_bytes(encoding).ok());
    // Tokens over "abc" in random order of length, so that a long one can have a lower rank than its parts; several splits of one token
    // have one rank, as with ranks files, or each its own, as with lists of merges.
    for (int i = 0; i < 60; ++i) {
      std::string bytes;
      for (std::size_t length = random() % 6 + 2; length > 0; --length) bytes.push_back(static_cast<char>('a' + random() % 3));
      if (encoding.tokens.find(bytes)) continue;
      ASSERT_TRUE(encoding.tokens.add(next++, bytes).ok());
    }
    std::uint32_t rank = 0;
    for (TokenId id = 256; id < next; ++id) {
      const std::string_view bytes = encoding.tokens.bytes_of(id);
      for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = encoding.tokens.find(bytes.substr(0, cut)), right = encoding.tokens.find(bytes.substr(cut));
        if (left && right) encoding.merges.add({*left, *right}, {seed % 2 == 0 ? id : rank++, id});
      }
    }
    MergeScratch scratch;
    for (int round = 0; round < 100; ++round) {
      std::string piece;
      for (std::size_t length = random() % 200 + 1; length > 0; --length) piece.push_back(static_cast<char>('a' + random() % 3));
      Ids tokens;
      encode_piece(encoding, piece, scratch, tokens);
      ASSERT_EQ(tokens, merge_slowly(encoding, piece)) << "seed " << seed << ", piece " << piece;
    }
  }
}

// Quadratic merging or scanning of these would take hours; the bound is generous, since machines differ.
TEST_F(Encoding, a_mebibyte_of_one_character) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string unit : {"a", "A", "^", " ", "\n", "\t", "0", "漢", "😀", "é", "\u0301", "!?", "<", "<|reserved_20000", "\xFF", "中A", "a'"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    for (const auto& tokenizer : {o200k_, tiny_}) {
      const Ids tokens = tokenizer->encode_with_special(text);
      ASSERT_EQ(tokens, tokenizer->encode(text)) << unit;
      ASSERT_FALSE(tokens.empty());
      const auto decoded = tokenizer->decode(tokens);
      ASSERT_TRUE(decoded.ok());
      ASSERT_TRUE(*decoded == text || unit == "\xFF") << unit;
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(5));
}

TEST(Sha256, known_hashes) {
  EXPECT_EQ(tests::Sha256::hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(tests::Sha256::hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(tests::Sha256::hex(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace althing::protocol
