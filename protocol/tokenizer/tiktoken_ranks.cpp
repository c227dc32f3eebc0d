// Merge ranks as tiktoken publishes them: one line a token, base64 of its bytes and its rank, in order. The rank is the id and the priority:
// two adjacent tokens merge when their concatenation is a token. The reader is strict, since a rank out of place changes every text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/tokenizer/byte_pair_encoding.hpp"

namespace althing::protocol {
namespace {

Error corrupt(std::size_t line, std::string_view what) {
  return Error{ErrorCode::corrupt, fmt::format("line {}: {}; a line is the base64 of a token, one space, its rank", line, what), ""};
}

// 0..63, or -1.
int value_of_base64(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// Canonical base64 only: padded, no other characters, unused bits zero. False otherwise.
bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::uint32_t bits = 0;
  int bit_count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int value = value_of_base64(c);
    if (value < 0) return false;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    bit_count += 6;
    if (bit_count < 8) continue;
    bit_count -= 8;
    bytes.push_back(static_cast<char>(bits >> bit_count));
    bits &= (1u << bit_count) - 1;
  }
  return bits == 0;
}

Status read_ranks(std::string_view text, TokenTable& tokens) {
  std::string bytes;
  TokenId rank = 0;
  for (std::size_t begin = 0; begin < text.size(); ++rank) {
    const std::size_t line = std::size_t{rank} + 1;
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t space = row.find(' ');
    if (space == row.npos) return corrupt(line, row.empty() ? "empty" : "no space and rank after the token");
    if (!decode_base64(row.substr(0, space), bytes)) return corrupt(line, fmt::format("'{:.40}' is not base64", row.substr(0, space)));
    if (row.substr(space + 1) != std::to_string(rank))
      return corrupt(line, fmt::format("the rank is '{:.20}' where {} is expected, ranks being in order from 0", row.substr(space + 1), rank));
    if (auto added = tokens.add(rank, bytes); !added) {
      Error error = std::move(added).error();
      error.message = fmt::format("line {}: {}", line, error.message);
      return error;
    }
  }
  return Ok{};
}

// Every way to cut a token into two tokens is a pair that merges.
void derive_merges(const TokenTable& tokens, MergeTable& merges) {
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string_view bytes = tokens.bytes_of(id);
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = tokens.find(bytes.substr(0, cut));
      if (!left) continue;
      if (const auto right = tokens.find(bytes.substr(cut))) merges.add({*left, *right}, {id, id});
    }
  }
}

Status add_specials(std::vector<std::pair<std::string, TokenId>> named, BytePairEncoding& encoding) {
  const TokenId ordinary_count = encoding.tokens.size();
  for (const auto& [name, id] : named) {
    if (id < ordinary_count)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("special token '{}' has id {}, which is the rank of an ordinary token; there are {} of them", name, id, ordinary_count), name};
    if (encoding.tokens.is_special(id) && !name.empty()) continue;  // A second name of one token; the first is what it decodes to.
    if (auto added = encoding.tokens.add_special(id, name); !added) return added;
  }
  std::vector<std::string_view> names;
  for (const auto& [name, id] : named) names.push_back(name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return Error{ErrorCode::invalid_argument, fmt::format("special token '{}' is given twice", *twice), std::string(*twice)};
  encoding.specials = SpecialTokens(std::move(named));
  return Ok{};
}

}  // namespace

Result<BytePairEncoding> parse_tiktoken(std::string_view text, std::vector<std::pair<std::string, TokenId>> special_tokens) {
  BytePairEncoding encoding;
  encoding.whole_piece_first = true;
  if (auto read = read_ranks(text, encoding.tokens); !read) return std::move(read).error();
  if (auto indexed = index_bytes(encoding); !indexed) return std::move(indexed).error();
  derive_merges(encoding.tokens, encoding.merges);
  if (auto added = add_specials(std::move(special_tokens), encoding); !added) return std::move(added).error();
  return encoding;
}

}  // namespace althing::protocol
