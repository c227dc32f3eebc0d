// See the header.
#include "actors/device_choice.hpp"

#include <algorithm>

namespace althing::actors {
namespace {

// Empty when each rank has a GPU that the kernels run on.
std::string obstacle(std::uint32_t ranks, const gpu::CudaReport& report) {
  if (report.devices.empty()) return report.reason;
  for (std::uint32_t r = 0; r < std::min<std::size_t>(ranks, report.devices.size()); ++r) {
    const gpu::CudaDevice& device = report.devices[r];
    if (!gpu::is_supported(device))
      return "GPU " + std::to_string(r) + " is a " + device.name + " of compute capability " + std::to_string(device.compute_major) + "." +
             std::to_string(device.compute_minor) + ", and the kernels are built for 9.0 (Hopper)";
  }
  if (report.devices.size() < ranks)
    return std::to_string(ranks) + " ranks need a GPU each, and this process sees " + std::to_string(report.devices.size());
  return "";
}

}  // namespace

Result<DeviceChoice> choose_device(std::string_view wish, std::uint32_t ranks, const gpu::CudaReport& report) {
  if (wish == "cpu") return DeviceChoice{gpu::Device::cpu, "as asked", 0};
  if (wish == "synthetic") return DeviceChoice{gpu::Device::synthetic, "as asked: it computes nothing, and answers are made up", 0};
  if (wish != "auto" && wish != "cuda")
    return Error{ErrorCode::invalid_argument, "--device is '" + std::string(wish) + "'; use auto, cpu, cuda or synthetic", "device"};
  if (const std::string why = obstacle(ranks, report); !why.empty()) {
    if (wish == "cuda") return Error{ErrorCode::unsupported, "--device cuda: " + why, "device"};
    return DeviceChoice{gpu::Device::cpu, why, 0};
  }
  DeviceChoice choice{gpu::Device::cuda, report.devices[0].name, report.devices[0].memory_bytes};
  for (std::uint32_t r = 1; r < ranks; ++r) choice.memory_bytes = std::min(choice.memory_bytes, report.devices[r].memory_bytes);
  return choice;
}

}  // namespace althing::actors
