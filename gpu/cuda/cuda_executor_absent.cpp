// Stands in for the CUDA executor in builds without CUDA. Executor::create has refused before, with the same reason.
#include "gpu/cuda/cuda_executor.hpp"
#include "gpu/cuda/device_info.hpp"

namespace althing::gpu::cuda {

Result<std::unique_ptr<Executor>> create_executor(std::shared_ptr<const Model>, const ExecutorConfig&) {
  return Error{ErrorCode::unsupported, "no GPU can be used: " + cuda_devices().reason, "device"};
}

}  // namespace althing::gpu::cuda
