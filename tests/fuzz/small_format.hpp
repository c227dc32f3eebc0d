// What fuzzers share: a vocabulary so small that all their time goes into what they feed, and the end of a run that breaks a promise.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "protocol/harmony/format.hpp"
#include "protocol/tokenizer/pretokenizer.hpp"

namespace althing::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

inline void append_utf8(std::string& out, unsigned code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  }
}

inline constexpr TokenId first_control = 256;  // the eight control tokens of Harmony follow each other from here on

// A vocabulary of the 256 bytes (id = byte) and the control tokens behind them, as a tokenizer.json.
inline protocol::harmony::Format make_small_format() {
  using Json = nlohmann::ordered_json;
  Json vocab = Json::object();
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string character;
    append_utf8(character, printable ? byte : next++);
    vocab[character] = byte;
  }
  Json added = Json::array();
  unsigned id = first_control;
  for (const char* name : {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>", "<|endoftext|>"})
    added.push_back({{"id", id++}, {"content", name}, {"special", true}});
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", std::string(protocol::o200k_pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json file = {{"added_tokens", added},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  auto tokenizer = protocol::Tokenizer::from_tokenizer_json_text(file.dump());
  require(tokenizer.ok(), tokenizer ? "" : tokenizer.error().message.c_str());
  auto format = protocol::harmony::Format::of(*tokenizer);
  require(format.ok(), format ? "" : format.error().message.c_str());
  return *std::move(format);
}

inline const protocol::harmony::Format& small_format() {
  static const protocol::harmony::Format made = make_small_format();
  return made;
}

// Ids as bytes: 0..255 stand for bytes of text, escaped by 0xFF for control and unknown ids, and for words that make headers likely.
inline std::vector<TokenId> ids_of(std::string_view bytes) {
  constexpr std::string_view words[] = {"assistant", "user", "tool", "final", " to=f", "json"};
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte != 0xFF || i + 1 == bytes.size()) {
      ids.push_back(byte);
      continue;
    }
    const unsigned code = static_cast<unsigned char>(bytes[++i]) % 24;
    if (code < 16) {
      ids.push_back(first_control + code % 9);  // the control tokens and the first id behind them, which does not exist
    } else if (code < 22) {
      for (const char c : words[code - 16]) ids.push_back(static_cast<unsigned char>(c));
    } else {
      ids.push_back(code == 22 ? 0xFFFFFFFFu : 0xFFu);
    }
  }
  return ids;
}

}  // namespace althing::fuzz
