// The one place that decides how KV memory is cut into pages: layers with the same window form a group, and all groups draw from one pool of pages of
// equal size in bytes. The group with most layers gets 16 tokens a page, the others as many as fit and as the backend's format allows: a multiple of
// 8, so that eight neighbouring positions never straddle two pages, or a power of two.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "gpu/executor.hpp"

namespace althing::gpu {
namespace {

constexpr std::uint64_t tokens_per_page_least = 16;
constexpr std::uint64_t tokens_multiple = 8;

std::uint64_t round_up_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

std::vector<KvGroup> groups_of(const DecoderSpec& spec) {
  std::vector<KvGroup> groups;
  for (std::uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const std::uint32_t window = spec.layers[layer].attention.window;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const KvGroup& g) { return g.window == window; });
    if (same != groups.end()) {
      same->layers.push_back(layer);
    } else {
      groups.push_back({window, 0, {layer}});
    }
  }
  std::sort(groups.begin(), groups.end(), [](const KvGroup& a, const KvGroup& b) { return a.window < b.window; });  // full attention first
  return groups;
}

// Pages that one sequence of `tokens` needs while it decodes: a window is whole in every position it can take against the page grid.
std::uint64_t pages_of(const KvLayout& layout, std::uint64_t tokens) {
  std::uint64_t pages = 0;
  for (const KvGroup& g : layout.groups) {
    const std::uint64_t all = round_up_div(tokens, g.tokens_per_page);
    pages += g.window == 0 ? all : std::min(all, round_up_div(g.window, g.tokens_per_page) + 1);
  }
  return pages;
}

}  // namespace

Result<KvLayout> kv_layout(const DecoderSpec& spec, std::span<const RankPlacement> placements, const KvFormat& format, std::uint64_t bytes_per_rank,
                           std::uint32_t context_tokens_min) {
  std::uint64_t kv_heads = 0;
  for (const RankPlacement& p : placements) kv_heads = std::max<std::uint64_t>(kv_heads, p.kv_heads.size());
  if (kv_heads == 0 || spec.layers.empty() || spec.head_dim == 0)
    return Error{ErrorCode::invalid_argument, "a KV layout needs at least one rank with KV heads and one layer", "placements"};
  const std::uint64_t layer_bytes = kv_heads * spec.head_dim * 2 * format.element_bytes;  // keys and values of one token

  KvLayout layout;
  layout.groups = groups_of(spec);
  std::uint64_t layers_most = 0;
  for (const KvGroup& g : layout.groups) layers_most = std::max<std::uint64_t>(layers_most, g.layers.size());
  layout.page_bytes = layers_most * layer_bytes * tokens_per_page_least;
  for (KvGroup& g : layout.groups) {
    const std::uint64_t fit = layout.page_bytes / (g.layers.size() * layer_bytes);
    g.tokens_per_page = static_cast<std::uint32_t>(format.tokens_power_of_two ? std::bit_floor(fit) : fit / tokens_multiple * tokens_multiple);
  }

  const std::uint64_t count = bytes_per_rank / layout.page_bytes;
  const std::uint64_t needed = pages_of(layout, std::max<std::uint32_t>(context_tokens_min, 1));
  if (count < needed)
    return Error{ErrorCode::too_large,
                 "KV memory of " + std::to_string(bytes_per_rank) + " bytes a rank does not hold one sequence of " +
                     std::to_string(context_tokens_min) + " tokens, which takes " + std::to_string(needed * layout.page_bytes) +
                     "; give it more memory or lower the context limit",
                 "kv_bytes"};
  layout.page_count = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, std::numeric_limits<std::uint32_t>::max() / 2));
  return layout;
}

}  // namespace althing::gpu
