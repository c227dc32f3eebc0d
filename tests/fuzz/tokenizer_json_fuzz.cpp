// Any bytes as a tokenizer.json, any damage to a good one, and any text through one: an error or a tokenizer, never a crash; what was encoded
// decodes to the text with invalid UTF-8 replaced; a stream of tokens is valid UTF-8.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/tokenizer/detokenizer.hpp"
#include "protocol/tokenizer/pretokenizer.hpp"
#include "protocol/tokenizer/tokenizer.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace {

using namespace althing::protocol;

// All bytes and a few merges, written as loaders read it.
std::string small_tokenizer_json() {
  std::string vocab;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned c = printable ? byte : next++;
    std::string key;
    if (c == '"' || c == '\\')
      key = {'\\', static_cast<char>(c)};
    else if (c < 0x80)
      key = {static_cast<char>(c)};
    else
      key = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    vocab += "\"" + key + "\":" + std::to_string(byte) + ",";
  }
  std::string pattern;
  for (const char c : o200k_pattern) pattern += c == '\\' ? "\\\\" : std::string(1, c);
  return R"({"added_tokens":[{"id":261,"content":"<|s|>","special":true},{"id":262,"content":"<|","special":true}],)"
         R"("normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" +
         pattern +
         R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
         vocab + R"("ab":256,"aa":257,"aaa":258,"ba":259,"aab":260},"merges":["a b",["a","a"],["aa","a"],"a aa",["b","a"],"aa b"]}})";
}

void require(bool holds) {
  if (!holds) std::abort();
}

void check_text(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  std::string storage;
  const std::string_view valid = valid_utf8(text, storage);
  for (const auto& tokens : {tokenizer->encode(text), tokenizer->encode_with_special(text)}) {
    const auto decoded = tokenizer->decode(tokens);
    require(decoded.ok() && *decoded == valid);
    Detokenizer detokenizer(tokenizer);
    std::string streamed;
    for (const auto token : tokens) {
      const std::string piece = detokenizer.push(token);
      require(valid_utf8_prefix(piece) == piece.size());
      streamed += piece;
    }
    require(streamed + detokenizer.finish() == valid);
  }
  for (const auto token : tokenizer->encode(text)) require(!tokenizer->is_special(token));
}

// The bytes as a stream of tokens, two bytes an id.
void check_stream(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view bytes) {
  Detokenizer detokenizer(tokenizer);
  std::string streamed, all, storage;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto token = static_cast<althing::TokenId>(static_cast<unsigned char>(bytes[i]) | (static_cast<unsigned char>(bytes[i + 1]) & 1) << 8);
    streamed += detokenizer.push(token);
    all += tokenizer->bytes_of(token).value_or("\xFF");
  }
  require(streamed + detokenizer.finish() == valid_utf8(all, storage));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string good = small_tokenizer_json();
  static const auto tokenizer = Tokenizer::from_tokenizer_json_text(good);
  require(tokenizer.ok());
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) {
    check_text(*tokenizer, rest);
    check_stream(*tokenizer, rest);
    return 0;
  }
  std::string json(rest);
  if (data[0] % 3 == 1 && rest.size() > 3) {
    // The good file with some bytes replaced or inserted at a place the input chooses.
    const unsigned at = 256u * static_cast<unsigned char>(rest[0]) + static_cast<unsigned char>(rest[1]);
    json = std::string(good).replace(at % good.size(), static_cast<unsigned char>(rest[2]), rest.substr(3));
  }
  if (const auto loaded = Tokenizer::from_tokenizer_json_text(json); loaded.ok()) check_text(*loaded, "aab ab\xFF <|s|> aaaa 12 \xE6\xBC\xA2");
  return 0;
}
