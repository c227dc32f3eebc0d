// What the machine offers to the CUDA backend, asked without creating a context on any device, so that `althing doctor` and the
// start-up checks cost no GPU memory. The same function exists in builds without CUDA; callers need no #ifdef.
// Invariant: `reason` is empty exactly when `devices` is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace althing::gpu {

struct CudaDevice {
  std::string name;
  std::uint64_t memory_bytes = 0;  // installed, not free
  int compute_major = 0;           // 9.0 is Hopper, which the kernels are built for
  int compute_minor = 0;
};

struct CudaReport {
  std::vector<CudaDevice> devices;
  int driver_version = 0;   // newest CUDA the driver can run: major * 1000 + minor * 10; 0: no driver
  int runtime_version = 0;  // CUDA this program was built with, the same way; 0: built without CUDA
  std::string reason;       // why there are no devices, and what to do
};

// The kernels are built for sm_90a, which runs on compute capability 9.0 and nothing else.
inline bool is_supported(const CudaDevice& device) { return device.compute_major == 9 && device.compute_minor == 0; }

// Never fails: what cannot be found out is in `reason`.
CudaReport cuda_devices();

// "13.0" of 13000.
inline std::string cuda_version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace althing::gpu
