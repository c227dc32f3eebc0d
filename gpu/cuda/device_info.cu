// The CUDA runtime's answers, turned into a CudaReport. Only attribute queries that create no context are used.
// NOTE: the runtime leaves its output untouched when a call fails, so every number starts at 0.
#include "gpu/cuda/device_info.hpp"

#include <cuda_runtime_api.h>

namespace althing::gpu {
namespace {

std::string no_devices_because(cudaError_t error, int driver_version) {
  if (driver_version == 0) return "no NVIDIA driver was found: install the driver, or make its libcuda.so.1 visible to this process";
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver supports CUDA " + cuda_version_text(driver_version) + " and this program needs " + cuda_version_text(CUDART_VERSION) +
           ": update the driver";
  if (error == cudaSuccess || error == cudaErrorNoDevice)
    return "the driver works but shows no GPU to this process: check CUDA_VISIBLE_DEVICES and the container's device settings";
  return std::string("the CUDA runtime answered ") + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
}

}  // namespace

CudaReport cuda_devices() {
  CudaReport report;
  int count = 0;
  cudaDriverGetVersion(&report.driver_version);
  cudaRuntimeGetVersion(&report.runtime_version);
  const cudaError_t error = cudaGetDeviceCount(&count);
  for (int index = 0; error == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties = {};
    if (const cudaError_t why = cudaGetDeviceProperties(&properties, index); why != cudaSuccess) {
      // All or nothing: a machine with one broken GPU must not look like a smaller healthy one.
      report.devices.clear();
      report.reason = "GPU " + std::to_string(index) + " of " + std::to_string(count) + " does not answer: " + cudaGetErrorString(why);
      return report;
    }
    report.devices.push_back({properties.name, properties.totalGlobalMem, properties.major, properties.minor});
  }
  if (report.devices.empty()) report.reason = no_devices_because(error, report.driver_version);
  return report;
}

}  // namespace althing::gpu
