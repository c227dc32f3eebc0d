// Stands in for device_info.cu in builds without CUDA: the same functions, and the reason why there is nothing to report.
#include "gpu/cuda/device_info.hpp"

namespace althing::gpu {

CudaReport cuda_devices() {
  CudaReport report;
  report.reason = "built without CUDA: put nvcc on PATH and configure with -DALTHING_CUDA=ON";
  return report;
}

}  // namespace althing::gpu
