// The KV shard of one CPU rank: one block of float pages, and where a token's keys and values lie in it. Inside a page each layer of the group and
// each KV head has its own part: keys as (head_dim, tokens) so that neighbouring positions are lanes, then values as (tokens, head_dim).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"

namespace althing::gpu::cpu {

class KvCache {
 public:
  struct Shape {
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
  };
  // One layer's place: which page table it uses and where its part of a page begins.
  struct LayerPlace {
    std::uint32_t group = 0;
    std::uint32_t tokens_per_page = 0;
    std::size_t offset = 0;  // floats from the page's begin
  };

  // invalid_argument when the layout does not name every layer once, does not fit its own page size, or has tokens a page that are not a
  // multiple of 8; too_large when the system gives no memory.
  static Result<KvCache> create(const KvLayout& layout, const Shape& shape, std::uint32_t layers);

  const LayerPlace& place(std::uint32_t layer) const { return places_[layer]; }
  // (head_dim, tokens_per_page)
  float* keys(const LayerPlace& place, PageId page, std::uint32_t head) const {
    return pages_.get() + page.value * page_floats_ + place.offset + head * head_floats(place);
  }
  // (tokens_per_page, head_dim)
  float* values(const LayerPlace& place, PageId page, std::uint32_t head) const { return keys(place, page, head) + head_floats(place) / 2; }
  // Every float of a page.
  void fill(PageId page, float value) { std::fill_n(pages_.get() + page.value * page_floats_, page_floats_, value); }
  // What the layers of `group` use of a page.
  std::span<std::byte> bytes_of(PageId page, std::uint32_t group) const {
    return {reinterpret_cast<std::byte*>(pages_.get() + page.value * page_floats_), group_bytes_[group]};
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(float* pages) const;
  };
  std::size_t head_floats(const LayerPlace& place) const { return std::size_t{2} * shape_.head_dim * place.tokens_per_page; }

  Shape shape_;
  std::size_t page_floats_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<LayerPlace> places_;
  std::vector<std::size_t> group_bytes_;
  std::unique_ptr<float[], Unmap> pages_{nullptr, Unmap{0}};
};

}  // namespace althing::gpu::cpu
