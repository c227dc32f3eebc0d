// Which pages hold the keys of which beginnings: a tree whose nodes are blocks of tokens, one root a salt. Children are found by comparing tokens, so
// what is found is exact; the hashes here only say why something was not found. A block is the least number of tokens that fills whole pages in every
// KV group. Invariants: a node has all of its full-attention pages, so a path from the root is a beginning that is whole but for its windows; a page
// is in one node at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "scheduler/vocabulary/prefix_miss.hpp"

namespace althing::scheduler {

// Never used twice, so one that is gone is noticed. 0: none.
using PrefixNode = Id<struct PrefixNodeTag, std::uint64_t>;

inline constexpr PageId page_missing{0xFFFF'FFFFu};

// A search copies no tokens.
struct TokensLess {
  using is_transparent = void;
  bool operator()(std::span<const TokenId> a, std::span<const TokenId> b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

class PrefixIndex {
 public:
  // How a block lies in pages. All groups' pages of a block are counted through: group g's are places first[g] … first[g] + per_block[g] - 1.
  struct Shape {
    std::uint32_t block_tokens = 0;
    std::uint32_t places = 0;
    std::uint32_t window_most = 0;                // the widest window, in tokens
    bool full_attention = false;                  // some group sees everything
    std::vector<std::uint32_t> per_block, first;  // by group
    std::vector<bool> windowed;                   // by place
  };
  struct Node {
    PrefixNode parent;
    std::uint32_t depth = 0;  // blocks up to its end; 0: a root
    PageKey salt;
    std::uint64_t hash = 0;               // of all its tokens, without the salt
    std::vector<PageId> pages;            // by place; page_missing where a window's page is gone
    bool tail = false;                    // its windows' pages belong to a position where somebody is likely to go on
    std::optional<std::uint64_t> prover;  // the sequence that wrote it and has drawn nothing behind it: whether it is finite is not known yet
    std::map<std::vector<TokenId>, PrefixNode, TokensLess> children;
    std::vector<TokenId> tokens;  // of the block
  };
  struct Place {
    PrefixNode node;  // none: the page is in no node
    std::uint32_t place = 0;
  };

  // `page_count` pages in all. Blocks of more than `tokens_most` tokens are of no use to anybody: nothing is kept then.
  PrefixIndex(const KvLayout& layout, std::uint32_t tokens_most);

  const Shape& shape() const { return shape_; }
  bool usable() const { return shape_.block_tokens > 0; }

  PrefixNode root(const PageKey& salt) const;
  // `parent` may be none: a beginning of nothing.
  PrefixNode child(PrefixNode parent, std::span<const TokenId> tokens) const;
  const Node* find(PrefixNode node) const;
  Place place_of(PageId page) const { return places_[page.value]; }
  std::size_t nodes() const { return nodes_.size(); }
  // Why there is no such child of `parent` (or of `salt`'s root).
  PrefixMiss why_not(PrefixNode parent, const PageKey& salt, std::span<const TokenId> tokens) const;

  PrefixNode make_root(const PageKey& salt);
  // REQUIRES: there is no such child; tokens.size() == block_tokens.
  PrefixNode add(PrefixNode parent, std::span<const TokenId> tokens);
  // The page that was there before, or page_missing. REQUIRES: `page` is in no node.
  PageId set_page(PrefixNode node, std::uint32_t place, PageId page);
  void drop_page(PageId page);
  void set_tail(PrefixNode node) { nodes_.at(node).tail = true; }
  void set_prover(PrefixNode node, std::optional<std::uint64_t> prover) { nodes_.at(node).prover = prover; }
  // The node and everything behind it; returns the pages that were in them. `evicted`: for want of pages, and whoever misses it will be told so.
  std::vector<PageId> remove(PrefixNode node, bool evicted);
  std::vector<PageId> clear();

  // Empty, or what is wrong with it.
  std::string check() const;

 private:
  static constexpr std::size_t evicted_most = 4096;

  std::uint64_t hash_of(PrefixNode parent, std::span<const TokenId> tokens) const;
  void note_evicted(const Node& node);
  void forget_node(PrefixNode id, const Node& node);

  Shape shape_;
  std::uint64_t made_ = 0;
  std::map<PrefixNode, Node> nodes_;
  std::map<PageKey, PrefixNode> roots_;
  std::vector<Place> places_;                        // by page
  std::map<std::uint64_t, std::uint32_t> contents_;  // nodes by hash, of all salts
  std::deque<std::uint64_t> evicted_;                // the newest, oldest first, by hash and salt
  std::map<std::uint64_t, std::uint32_t> evicted_counts_;
};

}  // namespace althing::scheduler
