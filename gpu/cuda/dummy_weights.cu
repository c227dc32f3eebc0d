// A word of a tile depends on the seed and its own place only.
#include "gpu/cuda/dummy_weights.hpp"

#include "gpu/cuda/intrinsics.cuh"
#include "gpu/draw_key.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr unsigned blocks = 1056, threads = 256;

__device__ std::uint32_t two_bf16(std::uint64_t bits) {
  const auto value = [](std::uint32_t b) { return (static_cast<float>(b) * 0x1p-32F - 0.5F) * 0.07F; };
  return pack_bf16(value(static_cast<std::uint32_t>(bits)), value(static_cast<std::uint32_t>(bits >> 32)));
}

__global__ void fill_kernel(std::uint32_t* words, std::uint64_t count, WeightFormat format, std::uint64_t seed) {
  const std::uint32_t tile_words = tile_bytes(format) / 4;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{threads} + threadIdx.x; i < count; i += std::uint64_t{blocks} * threads) {
    const std::uint64_t bits = mix_bits(seed + i * noise_step);
    const std::uint32_t at = static_cast<std::uint32_t>(i % tile_words) * 4;
    if (format == WeightFormat::bf16) {
      words[i] = two_bf16(bits);
    } else if (format == WeightFormat::mxfp4) {
      words[i] = at < 512 ? static_cast<std::uint32_t>(bits) : 0x7B7B7B7Bu;  // every exponent 246: 2^(120 - 127)
    } else {
      // Magnitudes from 1/8 to 15/8 in E4M3, times 2^-5.
      words[i] = at < 1024 ? (static_cast<std::uint32_t>(bits) & 0x9F9F9F9Fu) | 0x20202020u : 0x79007900u;
    }
  }
}

__global__ void fill_bf16_kernel(std::uint32_t* words, std::uint64_t count, std::uint64_t seed) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{threads} + threadIdx.x; i < count; i += std::uint64_t{blocks} * threads)
    words[i] = two_bf16(mix_bits(seed + i * noise_step));
}

}  // namespace

cudaError_t fill_dummy_matrix(const PackedMatrix& matrix, std::uint64_t seed, cudaStream_t stream) {
  fill_kernel<<<blocks, threads, 0, stream>>>(reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(matrix.data)), matrix.bytes() / 4,
                                              matrix.format, seed);
  return cudaGetLastError();
}

cudaError_t fill_dummy_bf16(void* values, std::uint64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_bf16_kernel<<<blocks, threads, 0, stream>>>(static_cast<std::uint32_t*>(values), count / 2, seed);
  return cudaGetLastError();
}

}  // namespace althing::gpu::cuda
