// CPU ranks, GPUs, or an engine that computes nothing: what was asked for, against what the machine has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpu/cuda/device_info.hpp"
#include "gpu/executor.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {

struct DeviceChoice {
  gpu::Device device = gpu::Device::cpu;
  std::string why;                 // for the log: the GPU's name, or why there is none
  std::uint64_t memory_bytes = 0;  // installed on each GPU, of the smallest one that is used
};

// `wish` is auto, cpu, cuda or synthetic, which nothing chooses by itself. Rank r takes GPU r of the report. auto falls back to the CPU; cuda does
// not. Errors: invalid_argument (another wish), unsupported (cuda, and a rank would have no GPU that the kernels run on).
Result<DeviceChoice> choose_device(std::string_view wish, std::uint32_t ranks, const gpu::CudaReport& report);

// Engine limits that are 0 (not set by the user) as fits the device: a GPU takes long prompts at once, a CPU rank would stall its streams.
constexpr Limits with_engine_limits(Limits limits, gpu::Device device) {
  const bool on_gpu = device != gpu::Device::cpu;  // or an engine that is to be no narrower
  if (limits.rows_max == 0) limits.rows_max = on_gpu ? 256 : 64;
  if (limits.step_tokens_max == 0) limits.step_tokens_max = on_gpu ? 8192 : 512;
  if (limits.prefill_chunk_max == 0) limits.prefill_chunk_max = std::min(limits.step_tokens_max, on_gpu ? 4096u : 256u);
  return limits;
}

}  // namespace althing::actors
