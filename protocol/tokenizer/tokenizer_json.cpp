// A Hugging Face tokenizer.json. Only what this build does exactly is accepted: byte-level BPE behind the o200k pattern. Everything else in the
// file that would change tokens is refused by name rather than ignored.
#include <simdjson.h>

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <set>

#include "protocol/tokenizer/byte_pair_encoding.hpp"
#include "protocol/tokenizer/pretokenizer.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol {
namespace {

namespace dom = simdjson::dom;

Error corrupt(std::string_view where, std::string_view what) {
  return Error{ErrorCode::corrupt, fmt::format("{} {}", where, what), std::string(where)};
}

Error unsupported(std::string_view where, std::string_view what) {
  return Error{ErrorCode::unsupported,
               fmt::format("{} {}; only byte-level BPE with the o200k pre-tokenizer can be loaded, as gpt-oss models have it", where, what),
               std::string(where)};
}

// Every object of the file that is read goes through here. Null when the key is missing or its value is null.
std::optional<dom::element> member(dom::object object, std::string_view key) {
  dom::element value;
  if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

Result<dom::object> object_member(dom::object object, std::string_view key, std::string_view where) {
  const auto value = member(object, key);
  if (!value) return corrupt(where, "is missing");
  dom::object found;
  if (value->get(found) != simdjson::SUCCESS) return corrupt(where, "is not an object");
  return found;
}

Result<dom::array> array_member(dom::object object, std::string_view key, std::string_view where) {
  const auto value = member(object, key);
  if (!value) return corrupt(where, "is missing");
  dom::array found;
  if (value->get(found) != simdjson::SUCCESS) return corrupt(where, "is not an array");
  return found;
}

std::string_view string_or(dom::object object, std::string_view key, std::string_view otherwise) {
  const auto value = member(object, key);
  std::string_view found;
  return value && value->get(found) == simdjson::SUCCESS ? found : otherwise;
}

bool flag_or(dom::object object, std::string_view key, bool otherwise) {
  const auto value = member(object, key);
  bool found = false;
  return value && value->get(found) == simdjson::SUCCESS ? found : otherwise;
}

Result<TokenId> token_id(dom::element value, std::string_view where) {
  std::uint64_t id = 0;
  if (value.get(id) != simdjson::SUCCESS) return corrupt(where, "is not a token id (an integer from 0)");
  if (id > token_id_max)
    return Error{ErrorCode::too_large, fmt::format("{} is {}, over the limit of {}", where, id, token_id_max), std::string(where)};
  return static_cast<TokenId>(id);
}

// The alphabet of byte-level vocabularies: printable characters of Latin-1 stand for themselves, the other bytes for U+0100 and on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_of_.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      byte_of_[printable ? static_cast<char32_t>(byte) : next++] = static_cast<std::int16_t>(byte);
    }
  }

  // REQUIRES: valid UTF-8. Null when a character is not of the alphabet.
  std::optional<std::string> bytes_of(std::string_view characters) const {
    std::string bytes;
    for (std::size_t position = 0; position < characters.size();) {
      const Utf8Step step = utf8_step(characters, position);
      if (step.code_point >= byte_of_.size() || byte_of_[step.code_point] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(byte_of_[step.code_point]));
      position += step.length;
    }
    return bytes;
  }

 private:
  std::array<std::int16_t, 0x144> byte_of_;  // -1: not of the alphabet
};

class Loader {
 public:
  explicit Loader(dom::object root) : root_(root) {}

  Result<BytePairEncoding> load() {
    for (const auto step : {&Loader::check_pipeline, &Loader::check_model, &Loader::read_added_tokens, &Loader::read_vocab, &Loader::read_merges})
      if (auto done = (this->*step)(); !done) return std::move(done).error();
    if (auto indexed = index_bytes(encoding_); !indexed) return std::move(indexed).error();
    return std::move(encoding_);
  }

 private:
  Status check_pipeline() {
    if (member(root_, "normalizer")) return unsupported("normalizer", "is not null");
    auto outer = object_member(root_, "pre_tokenizer", "pre_tokenizer");
    if (!outer) return std::move(outer).error();
    if (const auto type = string_or(*outer, "type", ""); type != "Sequence")
      return unsupported("pre_tokenizer", fmt::format("has type '{:.40}' where a Sequence of Split and ByteLevel is expected", type));
    auto steps = array_member(*outer, "pretokenizers", "pre_tokenizer.pretokenizers");
    if (!steps) return std::move(steps).error();
    dom::object split, byte_level;
    if (steps->size() != 2 || steps->at(0).get(split) != simdjson::SUCCESS || steps->at(1).get(byte_level) != simdjson::SUCCESS)
      return unsupported("pre_tokenizer.pretokenizers", fmt::format("has {} steps where Split and ByteLevel are expected", steps->size()));
    if (auto checked = check_split(split); !checked) return checked;
    if (string_or(byte_level, "type", "") != "ByteLevel" || flag_or(byte_level, "add_prefix_space", true) || flag_or(byte_level, "use_regex", true))
      return unsupported("pre_tokenizer.pretokenizers[1]", "is not a ByteLevel with add_prefix_space false and use_regex false");
    if (const auto decoder = member(root_, "decoder")) {
      dom::object object;
      if (decoder->get(object) != simdjson::SUCCESS || string_or(object, "type", "") != "ByteLevel")
        return unsupported("decoder", "is not a ByteLevel");
    }
    return Ok{};
  }

  Status check_split(dom::object split) {
    constexpr std::string_view where = "pre_tokenizer.pretokenizers[0]";
    if (const auto type = string_or(split, "type", ""); type != "Split") return unsupported(where, fmt::format("is a '{:.40}', not a Split", type));
    auto pattern = object_member(split, "pattern", "pre_tokenizer.pretokenizers[0].pattern");
    if (!pattern) return std::move(pattern).error();
    if (const auto regex = string_or(*pattern, "Regex", ""); regex != o200k_pattern)
      return unsupported(
          where, fmt::format("splits by '{:.60}' ({} bytes), which is not the o200k pattern ({} bytes)", regex, regex.size(), o200k_pattern.size()));
    // The pattern leaves nothing between its matches, so isolating matches and removing all else are the same.
    const auto behavior = string_or(split, "behavior", "");
    const bool inverted = flag_or(split, "invert", false);
    if (behavior == (inverted ? "Removed" : "Isolated")) return Ok{};
    return unsupported(where, fmt::format("has behavior '{:.40}' with invert {}; Isolated with false is expected", behavior, inverted));
  }

  Status check_model() {
    auto model = object_member(root_, "model", "model");
    if (!model) return std::move(model).error();
    model_ = *model;
    if (const auto type = string_or(model_, "type", "BPE"); type != "BPE")
      return unsupported("model.type", fmt::format("is '{:.40}', not BPE", type));
    if (const auto dropout = member(model_, "dropout")) {
      double probability = 1;
      if (dropout->get(probability) != simdjson::SUCCESS || probability != 0) return unsupported("model.dropout", "is not null or 0");
    }
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (member(model_, key) && !string_or(model_, key, "?").empty()) return unsupported(fmt::format("model.{}", key), "is not null or empty");
    if (flag_or(model_, "byte_fallback", false)) return unsupported("model.byte_fallback", "is true");
    encoding_.whole_piece_first = flag_or(model_, "ignore_merges", false);
    return Ok{};
  }

  // Added tokens are all held as special tokens: never found in ordinary text, whatever their flag `special` says.
  Status read_added_tokens() {
    if (!member(root_, "added_tokens")) return Ok{};
    auto added = array_member(root_, "added_tokens", "added_tokens");
    if (!added) return std::move(added).error();
    std::vector<std::pair<std::string, TokenId>> named;
    std::size_t index = 0;
    for (const dom::element entry : *added) {
      const std::string where = fmt::format("added_tokens[{}]", index++);
      dom::object token;
      if (entry.get(token) != simdjson::SUCCESS) return corrupt(where, "is not an object");
      const auto id_value = member(token, "id");
      if (!id_value) return corrupt(where, "has no id");
      auto id = token_id(*id_value, where + ".id");
      if (!id) return std::move(id).error();
      const auto content = string_or(token, "content", "");
      if (content.empty()) return corrupt(where, "has no content");
      for (const std::string_view key : {"lstrip", "rstrip", "single_word"})
        if (flag_or(token, key, false)) return unsupported(fmt::format("{}.{}", where, key), "is true");
      if (!names_.emplace(content).second) return corrupt(where, fmt::format("repeats '{:.60}'", content));
      if (auto done = encoding_.tokens.add_special(*id, content); !done) return at(where, std::move(done));
      named.emplace_back(content, *id);
    }
    encoding_.specials = SpecialTokens(std::move(named));
    return Ok{};
  }

  Status read_vocab() {
    auto vocab = object_member(model_, "vocab", "model.vocab");
    if (!vocab) return std::move(vocab).error();
    for (const dom::key_value_pair field : *vocab) {
      const std::string_view key = field.key;
      const auto where = [&] { return fmt::format("model.vocab[\"{:.60}\"]", key); };
      std::uint64_t small = 0;
      if (field.value.get(small) != simdjson::SUCCESS || small > token_id_max) return token_id(field.value, where()).error();
      const auto id = static_cast<TokenId>(small);
      if (const auto special = encoding_.specials.find(key)) {
        // Listed in both places, as some writers do.
        if (*special != id) return corrupt(where(), fmt::format("is {} and the added token of that name is {}", id, *special));
        continue;
      }
      const auto bytes = alphabet_.bytes_of(key);
      if (!bytes) return corrupt(where(), "has a character that is not of the byte-level alphabet");
      if (auto done = encoding_.tokens.add(id, *bytes); !done) return at(where(), std::move(done));
    }
    return Ok{};
  }

  Status read_merges() {
    auto merges = array_member(model_, "merges", "model.merges");
    if (!merges) return std::move(merges).error();
    std::uint32_t rank = 0;
    for (const dom::element entry : *merges) {
      if (auto done = read_merge(entry, rank); !done) return at(fmt::format("model.merges[{}]", rank), std::move(done));
      ++rank;
    }
    return Ok{};
  }

  Status read_merge(dom::element entry, std::uint32_t rank) {
    const Error form{ErrorCode::corrupt, "is not two tokens, as \"a b\" or [\"a\", \"b\"]", ""};
    std::string_view left, right;
    dom::array pair;
    if (entry.get(pair) == simdjson::SUCCESS) {
      if (pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) return form;
    } else {
      std::string_view both;
      if (entry.get(both) != simdjson::SUCCESS) return form;
      const std::size_t space = both.find(' ');
      if (space == both.npos) return form;
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    auto left_token = ordinary(left), right_token = ordinary(right);
    if (!left_token) return std::move(left_token).error();
    if (!right_token) return std::move(right_token).error();
    const std::string joined = std::string(encoding_.tokens.bytes_of(*left_token)).append(encoding_.tokens.bytes_of(*right_token));
    const auto merged = encoding_.tokens.find(joined);
    if (!merged) return Error{ErrorCode::corrupt, fmt::format("makes '{:.60}{:.60}', which is not in the vocabulary", left, right), ""};
    if (encoding_.merges.add({*left_token, *right_token}, {rank, *merged})) return Ok{};
    return Error{ErrorCode::corrupt, fmt::format("repeats the pair '{:.60}' and '{:.60}'", left, right), ""};
  }

  Result<TokenId> ordinary(std::string_view characters) const {
    if (const auto bytes = alphabet_.bytes_of(characters))
      if (const auto token = encoding_.tokens.find(*bytes)) return *token;
    return Error{ErrorCode::corrupt, fmt::format("names '{:.60}', which is not in the vocabulary", characters), ""};
  }

  static Status at(std::string_view where, Status failed) {
    Error error = std::move(failed).error();
    error.message = fmt::format("{}: {}", where, error.message);
    error.field = where;
    return error;
  }

  dom::object root_, model_;
  ByteAlphabet alphabet_;
  std::set<std::string, std::less<>> names_;
  BytePairEncoding encoding_;
};

}  // namespace

Result<BytePairEncoding> parse_tokenizer_json(std::string_view text) {
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root); error != simdjson::SUCCESS)
    return Error{ErrorCode::corrupt, fmt::format("{} bytes that are not JSON: {}", text.size(), simdjson::error_message(error)), ""};
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) return Error{ErrorCode::corrupt, "not a JSON object", ""};
  return Loader(object).load();
}

}  // namespace althing::protocol
