// See device_memory.hpp.
#include "gpu/cuda/device_memory.hpp"

namespace althing::gpu::cuda {

Error cuda_error(cudaError_t error, const std::string& what) {
  const ErrorCode code = error == cudaErrorMemoryAllocation ? ErrorCode::too_large : ErrorCode::internal;
  return {code, what + ": " + cudaGetErrorString(error), "cuda"};
}

}  // namespace althing::gpu::cuda
