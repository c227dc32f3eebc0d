// What kernels see of a step and of the KV cache: plain device pointers, passed by value. The executor owns the memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace althing::gpu::cuda {

// The tokens of a step. A captured graph has room for a bucket of them; places beyond the step's own have row -1: they are computed like
// others (with finite inputs), and whatever has an effect beyond their own place is left out for them.
struct StepTokens {
  const std::int32_t* rows = nullptr;       // (count) row of each token, or -1
  const std::int32_t* positions = nullptr;  // (count)
  std::uint32_t count = 0;
};

// One layer's part of the paged cache, bf16. Inside a page: (layers of the group, kv_heads, {keys, values}, tokens_per_page, head_dim).
struct LayerKv {
  std::byte* pages = nullptr;  // of the whole pool
  std::uint64_t page_bytes = 0;
  std::uint64_t layer_offset = 0;       // bytes from a page's begin to the layer's part
  const std::int32_t* table = nullptr;  // (rows, table_stride): page of each tokens_per_page positions, of the layer's group
  std::uint32_t table_stride = 0;
  std::uint32_t tokens_per_page = 0;  // a power of two, 16 or more
  std::uint32_t head_dim = 0;
  // (tokens of the step) page * tokens_per_page + place in the page of each token, or -1 for places without one; what the table says, in one look
  // instead of three. nullptr: ask the table.
  const std::int32_t* slots = nullptr;

#ifdef __CUDACC__
  __device__ std::byte* key_at(std::int32_t slot, std::uint32_t head) const {
    const std::uint32_t shift = __ffs(static_cast<int>(tokens_per_page)) - 1;
    const std::uint32_t head_elements = 2 * tokens_per_page * head_dim;
    return pages + static_cast<std::uint64_t>(slot >> shift) * page_bytes + layer_offset +
           2u * (head * head_elements + (slot & (tokens_per_page - 1)) * head_dim);
  }
  // The key of one position (head_dim elements); its value is tokens_per_page * head_dim elements further.
  __device__ std::byte* key(std::int32_t row, std::uint32_t position, std::uint32_t head) const {
    const std::uint64_t page = static_cast<std::uint32_t>(table[std::uint64_t(row) * table_stride + position / tokens_per_page]);
    const std::uint64_t head_elements = 2ull * tokens_per_page * head_dim;
    return pages + page * page_bytes + layer_offset + 2ull * (head * head_elements + (position % tokens_per_page) * head_dim);
  }
#endif
};

// Which rows of an input are the columns of a product, for one matrix or for each of several experts.
struct Columns {
  const std::int32_t* index = nullptr;    // (experts, capacity) or nullptr: column c stands for c
  const std::uint32_t* counts = nullptr;  // (experts) on the device, or nullptr: `count`
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;
  std::uint32_t divisor = 1;           // the input row of index i is i / divisor: pairs (token, choice) read their token's row
  const std::int32_t* only = nullptr;  // a step of one token: its `count` experts; the i-th has pair i as its only column. Saves reading lists.
};

// What the routing of a layer leaves behind. A pair is token * experts_per_token + choice. Lists are in no particular order: no result depends on it.
struct Routing {
  std::int32_t* chosen = nullptr;   // (tokens, experts_per_token) experts, best first; -1 for tokens with row -1
  float* weights = nullptr;         // likewise
  std::uint32_t* counts = nullptr;  // (experts) pairs of each
  std::int32_t* pairs = nullptr;    // (experts, capacity)
  std::uint32_t capacity = 0;       // tokens_max
};

}  // namespace althing::gpu::cuda
