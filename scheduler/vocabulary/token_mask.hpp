// Which tokens a draw may yield, as bytes: what a frontend makes, a plan carries to every rank, and a sampler reads. Either the legal tokens as a
// list
// ('l', then ascending ids as 32-bit words) or one bit a token ('b', then 32-bit words, token t being bit t % 32 of word t / 32), whichever is
// shorter; little-endian. No bytes: all tokens are legal.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing {

inline constexpr std::size_t mask_words(std::uint32_t vocabulary) { return (std::size_t{vocabulary} + 31) / 32; }

// (mask_words(vocabulary)) bits of legal tokens.
inline bool is_legal(std::span<const std::uint32_t> words, TokenId token) {
  return token / 32 < words.size() && ((words[token / 32] >> (token % 32)) & 1u) != 0;
}

// REQUIRES: no bit at or beyond the vocabulary is set.
inline std::string encode_mask(std::span<const std::uint32_t> words) {
  std::vector<TokenId> listed;
  for (std::size_t w = 0; w < words.size() && listed.size() < words.size(); ++w)
    for (std::uint32_t bits = words[w]; bits != 0; bits &= bits - 1)
      listed.push_back(static_cast<TokenId>(w * 32 + static_cast<std::size_t>(__builtin_ctz(bits))));
  const bool is_list = listed.size() < words.size();
  const void* from = is_list ? static_cast<const void*>(listed.data()) : words.data();
  std::string bytes(1 + 4 * (is_list ? listed.size() : words.size()), is_list ? 'l' : 'b');
  if (bytes.size() > 1) std::memcpy(bytes.data() + 1, from, bytes.size() - 1);
  return bytes;
}

// The bits, (mask_words(vocabulary)). Errors: invalid_argument (not a mask of this vocabulary, or no token is legal).
inline Result<std::vector<std::uint32_t>> decode_mask(std::string_view bytes, std::uint32_t vocabulary) {
  const auto refuse = [](const char* why) { return Error{ErrorCode::invalid_argument, std::string("a mask of tokens ") + why, "mask"}; };
  if (bytes.size() < 5 || bytes.size() % 4 != 1) return refuse("has the wrong length, or no legal token");
  std::vector<std::uint32_t> given((bytes.size() - 1) / 4);
  std::memcpy(given.data(), bytes.data() + 1, bytes.size() - 1);
  if (bytes[0] == 'b') {
    if (given.size() != mask_words(vocabulary)) return refuse("is of another vocabulary");
    if (vocabulary % 32 != 0 && (given.back() >> (vocabulary % 32)) != 0) return refuse("has legal tokens beyond the vocabulary");
    for (const std::uint32_t word : given)
      if (word != 0) return given;
    return refuse("has no legal token");
  }
  if (bytes[0] != 'l') return refuse("begins with neither l nor b");
  std::vector<std::uint32_t> words(mask_words(vocabulary), 0);
  for (const TokenId token : given) {
    if (token >= vocabulary) return refuse("has legal tokens beyond the vocabulary");
    words[token / 32] |= 1u << (token % 32);
  }
  return words;
}

}  // namespace althing
