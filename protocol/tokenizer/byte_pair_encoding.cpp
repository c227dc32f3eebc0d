// One candidate is in the heap for each adjacent pair that may merge. A merge makes its neighbours' candidates stale; they stay in the heap
// and are recognised when they come up, because the symbols at their place are no longer the pair they were made for.
#include "protocol/tokenizer/byte_pair_encoding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace althing::protocol {
namespace {

using Symbol = MergeScratch::Symbol;
using Candidate = MergeScratch::Candidate;

constexpr std::uint32_t none = ~std::uint32_t{0};
constexpr TokenId gone = ~TokenId{0};  // a symbol swallowed by its left neighbour

bool later(const Candidate& a, const Candidate& b) { return a.order > b.order; }

class Merging {
 public:
  Merging(const BytePairEncoding& encoding, std::string_view piece, MergeScratch& scratch)
      : merges_(encoding.merges), symbols_(scratch.symbols), heap_(scratch.heap) {
    symbols_.clear();
    heap_.clear();
    const auto count = static_cast<std::uint32_t>(piece.size());
    for (std::uint32_t i = 0; i < count; ++i)
      symbols_.push_back({encoding.token_of_byte[static_cast<unsigned char>(piece[i])], i == 0 ? none : i - 1, i + 1 == count ? none : i + 1});
    for (std::uint32_t i = 0; i < count; ++i) consider(i);
    std::make_heap(heap_.begin(), heap_.end(), later);
  }

  void run() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Candidate best = heap_.back();
      heap_.pop_back();
      merge_at(static_cast<std::uint32_t>(best.order), best.pair);
    }
  }

  void append_to(std::vector<TokenId>& out) const {
    for (std::uint32_t i = 0; i != none; i = symbols_[i].next) out.push_back(symbols_[i].token);
  }

 private:
  // True when there is a candidate for the symbol at `position` and its right neighbour; it is then last in the heap's vector.
  bool consider(std::uint32_t position) {
    const Symbol& left = symbols_[position];
    if (left.next == none) return false;
    const TokenPair pair{left.token, symbols_[left.next].token};
    const Merge* merge = merges_.find(pair);
    if (merge == nullptr) return false;
    heap_.push_back({std::uint64_t{merge->rank} << 32 | position, pair});
    return true;
  }

  void consider_and_sift(std::uint32_t position) {
    if (consider(position)) std::push_heap(heap_.begin(), heap_.end(), later);
  }

  void merge_at(std::uint32_t position, TokenPair pair) {
    Symbol& left = symbols_[position];
    if (left.token != pair.left || left.next == none || symbols_[left.next].token != pair.right) return;
    Symbol& right = symbols_[left.next];
    left.token = merges_.find(pair)->merged;
    left.next = right.next;
    right.token = gone;
    if (left.next != none) symbols_[left.next].previous = position;
    consider_and_sift(position);
    if (left.previous != none) consider_and_sift(left.previous);
  }

  const MergeTable& merges_;
  std::vector<Symbol>& symbols_;
  std::vector<Candidate>& heap_;
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
