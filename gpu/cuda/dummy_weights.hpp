// Weights that mean nothing, made on the device from a seed: values of a trained model's size, so that speed and paths are as with real ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"

namespace althing::gpu::cuda {

// Fills all tiles of `matrix` (whose data it writes). The same seed gives the same bytes.
cudaError_t fill_dummy_matrix(const PackedMatrix& matrix, std::uint64_t seed, cudaStream_t stream);
// bf16 values, uniform within +-0.035.
cudaError_t fill_dummy_bf16(void* values, std::uint64_t count, std::uint64_t seed, cudaStream_t stream);

}  // namespace althing::gpu::cuda
