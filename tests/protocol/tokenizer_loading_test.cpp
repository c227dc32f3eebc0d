// What a vocabulary file must hold. Each way to be wrong gives one error that names the place; none crashes or is passed over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "protocol/tokenizer/byte_pair_encoding.hpp"
#include "protocol/tokenizer/pretokenizer.hpp"
#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::protocol {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string utf8_of(unsigned code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// All bytes in value order (id = byte), then "ab" 256, "abc" 257, "bc" 258, and one special token.
Json small_tokenizer() {
  Json vocab;
  unsigned stand_in = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[utf8_of(printable ? byte : stand_in++)] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["bc"] = 258;
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", std::string(o200k_pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"added_tokens", Json::array({{{"id", 300}, {"content", "<|s|>"}, {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array({"a b", "ab c", "b c"})}}}};
}

std::shared_ptr<const Tokenizer> load(const Json& json) {
  auto loaded = Tokenizer::from_tokenizer_json_text(json.dump());
  if (!loaded) ADD_FAILURE() << loaded.error().message;
  return loaded.ok() ? *loaded : nullptr;
}

// Changes the small tokenizer at a JSON pointer and expects the error.
void expect_refused(const char* pointer, const Json& value, ErrorCode code, const char* message) {
  Json json = small_tokenizer();
  json[Json::json_pointer(pointer)] = value;
  const auto loaded = Tokenizer::from_tokenizer_json_text(json.dump());
  ASSERT_FALSE(loaded.ok()) << pointer << " = " << value;
  EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
  EXPECT_THAT(loaded.error().message, HasSubstr(message)) << pointer << " = " << value;
}

TEST(TokenizerLoading, a_small_tokenizer_json) {
  const auto tokenizer = load(small_tokenizer());
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode("xbc"), ElementsAre('x', 258));
  EXPECT_THAT(tokenizer->encode_with_special("a<|s|>b"), ElementsAre('a', 300, 'b'));
  EXPECT_EQ(tokenizer->vocabulary_size(), 301u);
  EXPECT_EQ(tokenizer->bytes_of(299), std::nullopt);
  EXPECT_EQ(tokenizer->bytes_of(0x20), " ");
}

TEST(TokenizerLoading, merges_as_strings_and_as_pairs_are_the_same) {
  Json pairs = small_tokenizer();
  pairs["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"}), Json::array({"b", "c"})});
  for (const char* text : {"abc", "bcabc", "aabbcc", "abcbcab"}) EXPECT_EQ(load(pairs)->encode(text), load(small_tokenizer())->encode(text)) << text;
}

TEST(TokenizerLoading, the_order_of_merges_decides) {
  Json json = small_tokenizer();
  json["model"]["merges"] = Json::array({"b c", "a b", "ab c"});
  EXPECT_THAT(load(json)->encode("abc"), ElementsAre('a', 258));
  // With ignore_merges a piece that is a token is that token.
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(json)->encode("abc"), ElementsAre(257));
  EXPECT_THAT(load(json)->encode("xabc"), ElementsAre('x', 'a', 258));
}

TEST(TokenizerLoading, an_added_token_may_also_stand_in_the_vocabulary) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["<|s|>"] = 300;
  EXPECT_EQ(load(json)->special("<|s|>"), 300u);
  EXPECT_THAT(load(json)->encode("<|s|>"), ElementsAre('<', '|', 's', '|', '>'));
  expect_refused("/model/vocab/<|s|>", 301, ErrorCode::corrupt, "the added token of that name is 300");
}

TEST(TokenizerLoading, removing_all_but_matches_is_the_same_as_isolating_them) {
  Json json = small_tokenizer();
  json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  json["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  EXPECT_THAT(load(json)->encode("abc"), ElementsAre(257));
}

TEST(TokenizerLoading, other_pipelines_are_refused_by_name) {
  expect_refused("/normalizer", {{"type", "NFC"}}, ErrorCode::unsupported, "normalizer");
  expect_refused("/pre_tokenizer", nullptr, ErrorCode::corrupt, "pre_tokenizer is missing");
  expect_refused("/pre_tokenizer/type", "Metaspace", ErrorCode::unsupported, "Metaspace");
  expect_refused("/pre_tokenizer/pretokenizers", Json::array(), ErrorCode::unsupported, "has 0 steps");
  expect_refused("/pre_tokenizer/pretokenizers/0/type", "Digits", ErrorCode::unsupported, "Digits");
  expect_refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{L}+", ErrorCode::unsupported, "not the o200k pattern");
  expect_refused("/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext", ErrorCode::unsupported, "MergedWithNext");
  expect_refused("/pre_tokenizer/pretokenizers/0/invert", true, ErrorCode::unsupported, "invert true");
  expect_refused("/pre_tokenizer/pretokenizers/1/use_regex", true, ErrorCode::unsupported, "ByteLevel");
  expect_refused("/pre_tokenizer/pretokenizers/1/add_prefix_space", true, ErrorCode::unsupported, "ByteLevel");
  expect_refused("/decoder/type", "WordPiece", ErrorCode::unsupported, "decoder");
  expect_refused("/model/type", "Unigram", ErrorCode::unsupported, "Unigram");
  expect_refused("/model/dropout", 0.1, ErrorCode::unsupported, "dropout");
  expect_refused("/model/byte_fallback", true, ErrorCode::unsupported, "byte_fallback");
  expect_refused("/model/end_of_word_suffix", "</w>", ErrorCode::unsupported, "end_of_word_suffix");
  expect_refused("/added_tokens/0/lstrip", true, ErrorCode::unsupported, "lstrip");
}

TEST(TokenizerLoading, corrupt_vocabularies_are_refused_by_place) {
  expect_refused("/model", 1, ErrorCode::corrupt, "model is not an object");
  expect_refused("/model/vocab", Json::array(), ErrorCode::corrupt, "model.vocab is not an object");
  expect_refused("/model/vocab/ab", -1, ErrorCode::corrupt, "model.vocab[\"ab\"]");
  expect_refused("/model/vocab/ab", 1.5, ErrorCode::corrupt, "model.vocab[\"ab\"]");
  expect_refused("/model/vocab/ab", 257, ErrorCode::corrupt, "id 257 is given to two tokens");
  expect_refused("/model/vocab/ab", 4'000'000'000u, ErrorCode::too_large, "4000000000");
  expect_refused("/model/vocab/ab", 300, ErrorCode::corrupt, "id 300 is given to two tokens");
  expect_refused("/model/vocab/a b", 400, ErrorCode::corrupt, "not of the byte-level alphabet");
  expect_refused("/model/vocab/漢", 400, ErrorCode::corrupt, "not of the byte-level alphabet");
  expect_refused(("/model/vocab/" + std::string(2000, 'x')).c_str(), 400, ErrorCode::too_large, "2000 bytes");
  Json json = small_tokenizer();
  json["model"]["vocab"].erase("Q");
  const auto loaded = Tokenizer::from_tokenizer_json_text(json.dump());
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message, HasSubstr("0x51"));
}

TEST(TokenizerLoading, corrupt_merges_are_refused_by_place) {
  expect_refused("/model/merges", "a b", ErrorCode::corrupt, "model.merges is not an array");
  expect_refused("/model/merges/1", 5, ErrorCode::corrupt, "model.merges[1]");
  expect_refused("/model/merges/1", "abc", ErrorCode::corrupt, "model.merges[1]");
  expect_refused("/model/merges/1", Json::array({"a"}), ErrorCode::corrupt, "model.merges[1]");
  expect_refused("/model/merges/1", Json::array({"a", 1}), ErrorCode::corrupt, "model.merges[1]");
  expect_refused("/model/merges/1", "a  b", ErrorCode::corrupt, "model.merges[1]");
  expect_refused("/model/merges/1", "a zz", ErrorCode::corrupt, "'zz', which is not in the vocabulary");
  expect_refused("/model/merges/1", "a c", ErrorCode::corrupt, "'ac', which is not in the vocabulary");
  expect_refused("/model/merges/1", "a b", ErrorCode::corrupt, "repeats the pair");
  expect_refused("/model/merges/1", "<|s|> a", ErrorCode::corrupt, "which is not in the vocabulary");
}

TEST(TokenizerLoading, corrupt_added_tokens_are_refused_by_place) {
  expect_refused("/added_tokens", 1, ErrorCode::corrupt, "added_tokens is not an array");
  expect_refused("/added_tokens/0", 1, ErrorCode::corrupt, "added_tokens[0]");
  expect_refused("/added_tokens/0/id", "x", ErrorCode::corrupt, "added_tokens[0].id");
  expect_refused("/added_tokens/0/id", nullptr, ErrorCode::corrupt, "added_tokens[0] has no id");
  expect_refused("/added_tokens/0/id", 1u << 30, ErrorCode::too_large, "over the limit");
  expect_refused("/added_tokens/0/content", "", ErrorCode::corrupt, "has no content");
  expect_refused("/added_tokens/1", {{"id", 301}, {"content", "<|s|>"}}, ErrorCode::corrupt, "added_tokens[1] repeats");
  expect_refused("/added_tokens/1", {{"id", 300}, {"content", "<|t|>"}}, ErrorCode::corrupt, "id 300 is given to two tokens");
}

TEST(TokenizerLoading, every_truncation_of_a_tokenizer_json_is_an_error) {
  const std::string text = small_tokenizer().dump();
  for (std::size_t length = 0; length < text.size(); length += 7) {
    const auto loaded = Tokenizer::from_tokenizer_json_text(std::string_view(text).substr(0, length));
    ASSERT_FALSE(loaded.ok()) << length;
    EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  }
  EXPECT_FALSE(Tokenizer::from_tokenizer_json_text("[]").ok());
  EXPECT_FALSE(Tokenizer::from_tokenizer_json_text("{}").ok());
  EXPECT_FALSE(Tokenizer::from_tokenizer_json_text(std::string(100'000, '[')).ok());
  EXPECT_FALSE(Tokenizer::from_tokenizer_json_text("{\"model\": \"\xFF\"}").ok());
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) text.push_back(k <= std::min<std::size_t>(3, bytes.size() - i) ? digits[bits >> (18 - 6 * k) & 63] : '=');
  }
  return text;
}

// All bytes, then what is given, as lines of ranks.
std::string ranks(const std::vector<std::string>& tokens) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) text += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  for (const std::string& token : tokens) text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

void expect_ranks_refused(const std::string& text, std::vector<std::pair<std::string, TokenId>> specials, const char* message) {
  const auto parsed = parse_tiktoken(text, std::move(specials));
  ASSERT_FALSE(parsed.ok()) << message;
  EXPECT_THAT(parsed.error().message, HasSubstr(message));
}

TEST(TokenizerLoading, ranks_are_read_strictly) {
  EXPECT_TRUE(parse_tiktoken(ranks({"ab"}), {}).ok());
  expect_ranks_refused("", {}, "0x00 has no token");
  expect_ranks_refused(ranks({}).substr(0, 2000), {}, "line ");
  expect_ranks_refused(ranks({}) + "YWI= 257\n", {}, "line 257: the rank is '257' where 256 is expected");
  expect_ranks_refused(ranks({}) + "YWI= 256\r\n", {}, "line 257: the rank is '256\r'");
  expect_ranks_refused(ranks({}) + "YWI= 0256\n", {}, "where 256 is expected");
  expect_ranks_refused(ranks({}) + "YWI=\n", {}, "line 257: no space and rank");
  expect_ranks_refused(ranks({}) + "\n", {}, "line 257: empty");
  expect_ranks_refused(ranks({}) + "YWI 256\n", {}, "'YWI' is not base64");
  expect_ranks_refused(ranks({}) + "YWJ= 256\n", {}, "is not base64");  // bits left over
  expect_ranks_refused(ranks({}) + "Y=I= 256\n", {}, "is not base64");
  expect_ranks_refused(ranks({}) + " 256\n", {}, "is not base64");
  expect_ranks_refused(ranks({"ab", "ab"}), {}, "line 258: tokens 256 and 257 have the same bytes");
  expect_ranks_refused(ranks({"a"}), {}, "have the same bytes");
  expect_ranks_refused(ranks({std::string(3000, 'x')}), {}, "3000 bytes");
}

TEST(TokenizerLoading, special_tokens_of_ranks_are_checked) {
  expect_ranks_refused(ranks({"ab"}), {{"<|s|>", 256}}, "the rank of an ordinary token");
  expect_ranks_refused(ranks({}), {{"<|s|>", 256}, {"<|s|>", 257}}, "given twice");
  expect_ranks_refused(ranks({}), {{"", 256}}, "empty");
  expect_ranks_refused(ranks({}), {{"<|s|>", 1u << 31}}, "over the limit");
  const auto parsed = parse_tiktoken(ranks({}), {{"<|first|>", 256}, {"<|second|>", 256}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->tokens.bytes_of(256), "<|first|>");
  EXPECT_EQ(parsed->specials.find("<|second|>"), 256u);
}

TEST(TokenizerLoading, files_that_cannot_be_read) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("althing_tokenizer_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto missing = Tokenizer::of_model(folder);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_THAT(missing.error().message, HasSubstr("tokenizer.json"));
  EXPECT_EQ(Tokenizer::from_tokenizer_json(folder).error().code, ErrorCode::io);
  EXPECT_EQ(Tokenizer::from_tiktoken(folder / "none.tiktoken", {}).error().code, ErrorCode::not_found);
  std::ofstream(folder / "tokenizer.json") << "{";
  const auto corrupt = Tokenizer::of_model(folder);
  ASSERT_FALSE(corrupt.ok());
  EXPECT_THAT(corrupt.error().message, HasSubstr((folder / "tokenizer.json").string()));
  std::filesystem::remove_all(folder);
}

// Merging by rank and by the list of merges agree for the tiny model, whose list holds every split of every token.
TEST(TokenizerLoading, tiny_by_ranks_and_by_merges_agree) {
  const auto by_merges = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
  ASSERT_TRUE(by_merges.ok()) << by_merges.error().message;
  std::string text;
  TokenId rank = 0;
  for (; !(*by_merges)->is_special(rank); ++rank) text += base64(*(*by_merges)->bytes_of(rank)) + " " + std::to_string(rank) + "\n";
  ASSERT_EQ(rank, 2283u);
  const std::filesystem::path file = std::filesystem::temp_directory_path() / ("althing_tiny_" + std::to_string(::getpid()) + ".tiktoken");
  std::ofstream(file) << text;
  const auto by_ranks = Tokenizer::from_tiktoken(file, {});
  std::filesystem::remove(file);
  ASSERT_TRUE(by_ranks.ok()) << by_ranks.error().message;
  std::ifstream lines(ALTHING_SOURCE_DIR "/examples/models/tiny/conversations.jsonl");
  int compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) ASSERT_EQ((*by_merges)->encode(line), (*by_ranks)->encode(line)) << compared;
  EXPECT_EQ(compared, 200);
}

}  // namespace
}  // namespace althing::protocol
