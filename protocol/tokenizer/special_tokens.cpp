// Names are kept sorted, so that the ones that share a beginning with the text are a range that only narrows, byte by byte.
#include "protocol/tokenizer/special_tokens.hpp"

#include <algorithm>

namespace althing::protocol {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string, TokenId>> tokens) : sorted_(std::move(tokens)) {
  std::sort(sorted_.begin(), sorted_.end());
  for (const auto& [name, token] : sorted_)
    if (first_bytes_.empty() || first_bytes_.back() != name.front()) first_bytes_.push_back(name.front());
}

std::optional<TokenId> SpecialTokens::find(std::string_view name) const {
  const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), name, [](const auto& entry, std::string_view n) { return entry.first < n; });
  if (found == sorted_.end() || found->first != name) return std::nullopt;
  return found->second;
}

std::optional<SpecialTokens::Match> SpecialTokens::next(std::string_view text, std::size_t begin) const {
  for (begin = text.find_first_of(first_bytes_, begin); begin != text.npos; begin = text.find_first_of(first_bytes_, begin + 1))
    if (auto match = longest_at(text, begin)) return match;
  return std::nullopt;
}

std::optional<SpecialTokens::Match> SpecialTokens::longest_at(std::string_view text, std::size_t begin) const {
  std::optional<Match> longest;
  auto first = sorted_.begin(), last = sorted_.end();
  for (std::size_t length = 0; begin + length < text.size() && first != last; ++length) {
    // Names of [first, last) have the text's first `length` bytes and are longer than that; keep those that also have the next byte.
    const auto next_byte = static_cast<unsigned char>(text[begin + length]);
    const auto at = [length](const auto& entry) { return static_cast<unsigned char>(entry.first[length]); };
    first = std::partition_point(first, last, [&](const auto& entry) { return at(entry) < next_byte; });
    last = std::partition_point(first, last, [&](const auto& entry) { return at(entry) == next_byte; });
    // The one that ends here, if there is one, comes before the longer ones.
    if (first != last && first->first.size() == length + 1) {
      longest = Match{begin, length + 1, first->second};
      ++first;
    }
  }
  return longest;
}

}  // namespace althing::protocol
