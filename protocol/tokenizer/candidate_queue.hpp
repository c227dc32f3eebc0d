// The pairs of one piece that may merge, lowest rank first and leftmost of equals. Candidates of one rank mostly arrive from left to right, so
// they are kept as chains that ascend, and only the heads of chains are in a heap: a run of one character costs O(1) a merge, not O(log n).
// The order is exact whatever arrives; only the cost depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/tokenizer/merge_table.hpp"

namespace althing::protocol {

struct Candidate {
  std::uint32_t position = 0;  // of the left symbol
  TokenPair pair;              // void when the symbols there are no longer these
};

class CandidateQueue {
 public:
  void clear() {
    heads_.clear();
    nodes_.clear();
    free_ = none;
    open_.fill({});
  }

  bool empty() const { return heads_.empty(); }

  void push(std::uint32_t rank, const Candidate& candidate) {
    const std::uint32_t node = allocate(candidate);
    Open& open = open_[rank % open_.size()];
    if (open.tail != none && open.rank == rank && nodes_[open.tail].candidate.position < candidate.position) {
      nodes_[open.tail].next = node;
    } else {
      heads_.push_back({order_of(rank, candidate.position), node});
      std::push_heap(heads_.begin(), heads_.end(), later);
    }
    open = {rank, node};
  }

  // REQUIRES: not empty.
  Candidate pop() {
    const Head head = heads_.front();
    const Node node = nodes_[head.node];
    const auto rank = static_cast<std::uint32_t>(head.order >> 32);
    if (node.next != none) {
      heads_.front() = {order_of(rank, nodes_[node.next].candidate.position), node.next};
      sift_down();
    } else {
      Open& open = open_[rank % open_.size()];
      if (open.tail == head.node) open.tail = none;
      std::pop_heap(heads_.begin(), heads_.end(), later);
      heads_.pop_back();
    }
    nodes_[head.node].next = free_;
    free_ = head.node;
    return node.candidate;
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Node {
    Candidate candidate;
    std::uint32_t next = none;  // in its chain, or in the list of free nodes
  };
  struct Head {
    std::uint64_t order = 0;  // rank, then position
    std::uint32_t node = 0;
  };
  // The chain that the next candidate of a rank may extend; ranks share these places, the latest wins.
  struct Open {
    std::uint32_t rank = 0, tail = none;
  };

  static std::uint64_t order_of(std::uint32_t rank, std::uint32_t position) { return std::uint64_t{rank} << 32 | position; }
  static bool later(const Head& a, const Head& b) { return a.order > b.order; }

  std::uint32_t allocate(const Candidate& candidate) {
    if (free_ == none) {
      nodes_.push_back({candidate, none});
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    const std::uint32_t node = free_;
    free_ = nodes_[node].next;
    nodes_[node] = {candidate, none};
    return node;
  }

  // Restores the heap after its top was replaced by something later; a top that is still the first costs two comparisons.
  void sift_down() {
    const Head moved = heads_.front();
    std::size_t hole = 0;
    for (std::size_t child = 1; child < heads_.size(); child = 2 * hole + 1) {
      if (child + 1 < heads_.size() && later(heads_[child], heads_[child + 1])) ++child;
      if (!later(moved, heads_[child])) break;
      heads_[hole] = heads_[child];
      hole = child;
    }
    heads_[hole] = moved;
  }

  std::vector<Head> heads_;
  std::vector<Node> nodes_;
  std::uint32_t free_ = none;
  std::array<Open, 64> open_{};
};

}  // namespace althing::protocol
