// Why a request had to compute more of its prompt than its last token.
#pragma once

#include <cstdint>
#include <string_view>

namespace althing {

// `tenant` is for the operator alone: whoever asked must not learn from it what others have sent.
enum class PrefixMiss : std::uint8_t {
  none,          // nothing was missed that could be had
  cold,          // nobody has computed these tokens behind that beginning
  evicted,       // somebody had, and the pages were needed for others
  boundary,      // the pages are there, but for the window of the position: the last position with a whole window is further to the front
  tenant,        // another tenant has, and tenants do not share
  short_prompt,  // too short to hold a whole block of pages
  traced,        // a trace tells of every token, so every token is computed
  disabled,      // this server shares nothing
};

inline constexpr std::uint32_t prefix_miss_count = 8;

constexpr std::string_view name_of(PrefixMiss miss) {
  constexpr std::string_view names[] = {"none", "cold", "evicted", "boundary", "tenant", "short", "traced", "disabled"};
  return names[static_cast<int>(miss)];
}

}  // namespace althing
