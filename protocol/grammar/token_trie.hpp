// The ordinary tokens of a vocabulary by their bytes, as a tree that is laid out in the order in which it is walked. Special tokens are not in it: no
// text becomes one. Immutable, one for all grammars of a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::protocol::grammar {

class TokenTrie {
 public:
  static constexpr TokenId none = 0xFFFF'FFFFu;
  struct Node {
    std::uint32_t end = 0;  // behind the last node below this one
    TokenId token = none;   // that ends here
    std::uint16_t depth = 0;
    std::uint8_t byte = 0;  // by which it is reached
  };

  explicit TokenTrie(std::shared_ptr<const Tokenizer> tokenizer);

  // A node stands before those below it, which stand before its next sibling.
  const std::vector<Node>& nodes() const { return nodes_; }
  std::uint32_t depth_max() const { return depth_max_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Node> nodes_;
  std::uint32_t depth_max_ = 0;
};

}  // namespace althing::protocol::grammar
