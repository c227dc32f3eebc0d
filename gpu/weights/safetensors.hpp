// The safetensors format over bytes in memory: u64 header length, JSON header, tensor data. Everything the header claims is checked against the
// bytes that are there before anything is allocated in proportion to a claim: length cap, JSON form, dtypes, shape products, offsets,
// overlaps, gaps, duplicates. Views returned are in bounds, disjoint and together cover the data section exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/tensor.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

inline constexpr std::uint64_t safetensors_header_bytes_max = 100'000'000;
inline constexpr std::size_t tensor_rank_max = 8;

// `file` is what messages call the bytes. Views point into `bytes`, in the order of their data. Zero-size tensors get a non-null address.
// Errors: corrupt, unsupported (a dtype of the format that no model here uses); each names file, tensor and byte, in one line.
Result<std::vector<TensorView>> parse_safetensors(std::string_view file, std::span<const std::byte> bytes);

// "[2, 3]"
std::string shape_text(std::span<const std::uint64_t> shape);
// Number of elements. REQUIRES: a view whose product is known not to overflow (any view of a Checkpoint).
std::uint64_t element_count(const TensorView& tensor);
inline std::uint64_t byte_count(const TensorView& tensor) { return element_count(tensor) * size_of(tensor.dtype); }

}  // namespace althing::gpu
