// CPU ranks or GPUs: what was asked for, against what the machine has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpu/cuda/device_info.hpp"
#include "gpu/executor.hpp"

namespace althing::actors {

struct DeviceChoice {
  gpu::Device device = gpu::Device::cpu;
  std::string why;                 // for the log: the GPU's name, or why there is none
  std::uint64_t memory_bytes = 0;  // installed on each GPU, of the smallest one that is used
};

// `wish` is auto, cpu or cuda. Rank r takes GPU r of the report. auto falls back to the CPU; cuda does not. Errors: invalid_argument (another
// wish), unsupported (cuda, and a rank would have no GPU that the kernels run on).
Result<DeviceChoice> choose_device(std::string_view wish, std::uint32_t ranks, const gpu::CudaReport& report);

}  // namespace althing::actors
