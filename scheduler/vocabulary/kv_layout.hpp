// How the KV cache of a DP group is cut into pages. All groups of layers share one pool of pages of equal size in bytes; how many tokens a page holds
// follows from how many bytes a token takes in the group. The core needs only the counts; the backend derives every offset from the same struct.
#pragma once

#include <cstdint>
#include <vector>

namespace althing {

// Layers that share a page table: all full-attention layers, or all layers of one window.
struct KvGroup {
  std::uint32_t window = 0;           // 0: full attention; else a token sees itself and window-1 tokens before it
  std::uint32_t tokens_per_page = 0;  // >= 1
  std::vector<std::uint32_t> layers;  // ascending

  friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

struct KvLayout {
  std::uint32_t page_count = 0;  // of one DP group's pool
  std::uint64_t page_bytes = 0;  // on one rank
  std::vector<KvGroup> groups;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace althing
