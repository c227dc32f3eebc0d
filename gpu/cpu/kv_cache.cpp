// See the header. Memory comes as untouched anonymous pages: a pool larger than what is used costs nothing until it is written.
#include "gpu/cpu/kv_cache.hpp"

#include <sys/mman.h>

#include <string>

namespace althing::gpu::cpu {

void KvCache::Unmap::operator()(float* pages) const { munmap(pages, bytes); }

Result<KvCache> KvCache::create(const KvLayout& layout, const Shape& shape, std::uint32_t layers) {
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::invalid_argument, "the KV layout does not fit this model: " + why, "kv"};
  };
  KvCache cache;
  cache.shape_ = shape;
  std::vector<bool> named(layers);
  cache.places_.resize(layers);
  for (std::uint32_t g = 0; g < layout.groups.size(); ++g) {
    const KvGroup& group = layout.groups[g];
    if (group.tokens_per_page == 0 || group.tokens_per_page % 8 != 0)
      return refuse("group " + std::to_string(g) + " has " + std::to_string(group.tokens_per_page) +
                    " tokens a page; the CPU backend needs a multiple of 8");
    const std::uint64_t layer_bytes = std::uint64_t{group.tokens_per_page} * shape.kv_heads * shape.head_dim * 2 * sizeof(float);
    if (layer_bytes * group.layers.size() > layout.page_bytes)
      return refuse("group " + std::to_string(g) + " needs pages of " + std::to_string(layer_bytes * group.layers.size()) + " bytes, they have " +
                    std::to_string(layout.page_bytes));
    cache.group_bytes_.push_back(layer_bytes * group.layers.size());
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      const std::uint32_t layer = group.layers[i];
      if (layer >= layers || named[layer]) return refuse("layer " + std::to_string(layer) + " is named twice or does not exist");
      named[layer] = true;
      cache.places_[layer] = {g, group.tokens_per_page, i * (layer_bytes / sizeof(float))};
    }
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    if (!named[layer]) return refuse("layer " + std::to_string(layer) + " is in no group");
  if (layout.page_count == 0 || layout.page_bytes % 32 != 0)
    return refuse(std::to_string(layout.page_count) + " pages of " + std::to_string(layout.page_bytes) +
                  " bytes; pages must be a multiple of 32 bytes");

  cache.page_floats_ = layout.page_bytes / sizeof(float);
  cache.bytes_ = layout.page_bytes * layout.page_count;
  void* memory = mmap(nullptr, cache.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{ErrorCode::too_large, "the system has no address space for " + std::to_string(cache.bytes_) + " bytes of KV cache", "kv"};
  cache.pages_ = std::unique_ptr<float[], Unmap>(static_cast<float*>(memory), Unmap{cache.bytes_});
  return cache;
}

}  // namespace althing::gpu::cpu
