// A loaded vocabulary and the merging of one piece. Merging is a queue of pairs over a linked list: n log n at worst in the length
// of the piece, iterative.
// Every byte has a token, so every piece can be encoded; special tokens are in no table that merging reads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/tokenizer/candidate_queue.hpp"
#include "protocol/tokenizer/merge_table.hpp"
#include "protocol/tokenizer/special_tokens.hpp"
#include "protocol/tokenizer/token_table.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol {

struct BytePairEncoding {
  TokenTable tokens;
  MergeTable merges;
  SpecialTokens specials;
  std::array<TokenId, 256> token_of_byte{};
  // A piece that is a token is that token, even where merging would not arrive at it.
  bool whole_piece_first = false;
};

// Working memory of encode_piece, kept between pieces.
struct MergeScratch {
  struct Symbol {
    TokenId token = 0;
    std::uint32_t previous = 0, next = 0;  // indices of symbols, or none
  };
  std::vector<Symbol> symbols;
  CandidateQueue candidates;
};

// Appends the tokens of one piece. REQUIRES: piece is not empty and under 4 GiB.
void encode_piece(const BytePairEncoding& encoding, std::string_view piece, MergeScratch& scratch, std::vector<TokenId>& out);

// Fills token_of_byte. Errors: corrupt, naming the byte without a token.
Status index_bytes(BytePairEncoding& encoding);

// The loaders; contracts are Tokenizer's. Messages say where in the file, not which file.
Result<BytePairEncoding> parse_tokenizer_json(std::string_view text);
Result<BytePairEncoding> parse_tiktoken(std::string_view text, std::vector<std::pair<std::string, TokenId>> special_tokens);

}  // namespace althing::protocol
