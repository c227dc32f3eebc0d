// Brings a rank's weights onto the device: from the checkpoint's mapping through a small ring of pinned buffers by several reader threads, packed
// there into tiles. Nothing is resident twice. A dummy model's weights are made on the device instead.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu/cuda/device_memory.hpp"
#include "gpu/cuda/device_model.hpp"
#include "gpu/ops/ops.hpp"

namespace althing::gpu::cuda {

struct LoadOptions {
  WeightFormat dense = WeightFormat::bf16;  // of attention and head: bf16, or fp8 with scales of 128 x 128
  bool screen_head = true;                  // a copy of the head in 8 bits, where it is bf16
  std::uint32_t readers = 8;
  std::optional<std::uint64_t> dummy_seed;  // make weights up; the program's addresses are not read
};

struct LoadedModel {
  DeviceModel model;  // points into `memory`
  DeviceBuffer<std::byte> memory;
};

// Errors: unsupported (a shape or weight that the kernels do not take, named), too_large (the device's memory), internal (CUDA).
// REQUIRES: a program of one rank (all heads and all experts); the device is current on this thread.
Result<LoadedModel> load_weights(const Program& program, const LoadOptions& options);

}  // namespace althing::gpu::cuda
