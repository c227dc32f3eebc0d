// See the header.
#include "protocol/grammar/token_trie.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace althing::protocol::grammar {

TokenTrie::TokenTrie(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  for (TokenId token = 0; token < tokenizer_->vocabulary_size(); ++token) {
    const auto bytes = tokenizer_->bytes_of(token);
    if (bytes && !bytes->empty() && !tokenizer_->is_special(token)) tokens.emplace_back(*bytes, token);
  }
  std::sort(tokens.begin(), tokens.end());
  std::vector<std::uint32_t> open;  // the nodes on the way to the last token
  const auto close_to = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  std::string_view last;
  for (const auto& [bytes, token] : tokens) {
    const auto shared = static_cast<std::size_t>(std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    close_to(shared);
    for (std::size_t depth = shared; depth < bytes.size(); ++depth) {
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, none, static_cast<std::uint16_t>(depth), static_cast<std::uint8_t>(bytes[depth])});
    }
    nodes_[open.back()].token = token;
    depth_max_ = std::max(depth_max_, static_cast<std::uint32_t>(bytes.size()));
    last = bytes;
  }
  close_to(0);
}

}  // namespace althing::protocol::grammar
