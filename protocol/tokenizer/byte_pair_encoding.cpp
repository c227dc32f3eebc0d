// One candidate is queued for each adjacent pair that may merge. A merge makes its neighbours' candidates stale; they stay in the queue
// and are recognised when they come up, because the symbols at their place are no longer the pair they were made for.
#include "protocol/tokenizer/byte_pair_encoding.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace althing::protocol {
namespace {

using Symbol = MergeScratch::Symbol;

constexpr std::uint32_t none = ~std::uint32_t{0};
constexpr TokenId gone = ~TokenId{0};  // a symbol swallowed by its left neighbour

class Merging {
 public:
  Merging(const BytePairEncoding& encoding, std::string_view piece, MergeScratch& scratch)
      : merges_(encoding.merges), symbols_(scratch.symbols), candidates_(scratch.candidates) {
    symbols_.clear();
    candidates_.clear();
    const auto count = static_cast<std::uint32_t>(piece.size());
    for (std::uint32_t i = 0; i < count; ++i)
      symbols_.push_back({encoding.token_of_byte[static_cast<unsigned char>(piece[i])], i == 0 ? none : i - 1, i + 1 == count ? none : i + 1});
    for (std::uint32_t i = 0; i < count; ++i) consider(i);
  }

  void run() {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.pop();
      merge_at(best.position, best.pair);
    }
  }

  void append_to(std::vector<TokenId>& out) const {
    for (std::uint32_t i = 0; i != none; i = symbols_[i].next) out.push_back(symbols_[i].token);
  }

 private:
  // Queues the symbol at `position` and its right neighbour if they may merge.
  void consider(std::uint32_t position) {
    const Symbol& left = symbols_[position];
    if (left.next == none) return;
    const TokenPair pair{left.token, symbols_[left.next].token};
    if (const Merge* merge = merges_.find(pair)) candidates_.push(merge->rank, {position, pair});
  }

  void merge_at(std::uint32_t position, TokenPair pair) {
    Symbol& left = symbols_[position];
    if (left.token != pair.left || left.next == none || symbols_[left.next].token != pair.right) return;
    Symbol& right = symbols_[left.next];
    left.token = merges_.find(pair)->merged;
    left.next = right.next;
    right.token = gone;
    if (left.next != none) symbols_[left.next].previous = position;
    consider(position);
    if (left.previous != none) consider(left.previous);
  }

  const MergeTable& merges_;
  std::vector<Symbol>& symbols_;
  CandidateQueue& candidates_;
};

}  // namespace

void encode_piece(const BytePairEncoding& encoding, std::string_view piece, MergeScratch& scratch, std::vector<TokenId>& out) {
  if (encoding.whole_piece_first) {
    if (const auto token = encoding.tokens.find(piece)) {
      out.push_back(*token);
      return;
    }
  }
  Merging merging(encoding, piece, scratch);
  merging.run();
  merging.append_to(out);
}

Status index_bytes(BytePairEncoding& encoding) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    const auto token = encoding.tokens.find(std::string_view(&character, 1));
    if (!token)
      return Error{ErrorCode::corrupt,
                   fmt::format("the single byte 0x{:02X} has no token; all 256 bytes must have one, so that every text can be encoded", byte), ""};
    encoding.token_of_byte[byte] = *token;
  }
  return Ok{};
}

}  // namespace althing::protocol
