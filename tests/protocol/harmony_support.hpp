// What Harmony's tests share: the two tokenizers in the tree, loaded once a program, and short ways to make messages and tokens.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"
#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::tests {

// The value, or the end of the program with the error's text: a missing data file is no matter of a single test.
template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(2);
  }
  return std::move(result).value();
}

// gpt-oss's vocabulary.
inline const protocol::harmony::Format& o200k_format() {
  static const auto format = must(protocol::harmony::Format::of(must(protocol::Tokenizer::from_tiktoken(
      ALTHING_SOURCE_DIR "/tests/data/o200k_base.tiktoken", protocol::Tokenizer::o200k_harmony_special_tokens()))));
  return format;
}

// The tiny model's vocabulary: the same format with other ids.
inline const protocol::harmony::Format& tiny_format() {
  static const auto format = must(protocol::harmony::Format::of(must(protocol::Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny"))));
  return format;
}

// Text with control tokens by name to ids.
inline std::vector<TokenId> ids(const protocol::harmony::Format& format, std::string_view text) {
  return format.tokenizer->encode_with_special(text);
}

inline std::string text_of(const protocol::harmony::Message& message) {
  std::string text;
  for (const auto& part : message.content) text += std::get<protocol::harmony::TextContent>(part).text;
  return text;
}

}  // namespace althing::tests
