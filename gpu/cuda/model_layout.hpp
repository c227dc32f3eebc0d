// Where each weight of a program goes on the device, and what must be done to get it there. Walks the program's ops once to count bytes and once with
// an address; it copies nothing.
#pragma once

#include <vector>

#include "gpu/cuda/device_model.hpp"
#include "gpu/ops/ops.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu::cuda {

// One matrix, or rows of one, from the checkpoint to tiles.
struct PackJob {
  Matrix source;
  PackedMatrix target;  // of one matrix
  std::byte* data = nullptr;
  std::uint32_t first_row = 0;
  RowOrder order = RowOrder::natural;
  std::uint32_t order_block = 0;
};
// A vector, widened to float.
struct VectorJob {
  Vector source;
  float* target = nullptr;
  bool is_norm = false;  // what a dummy model sets to one; others are zero
};

struct ModelLayout {
  DeviceModel model;
  std::vector<PackJob> packs;
  std::vector<VectorJob> vectors;
  Matrix embedding;  // (vocabulary, hidden): copied as bf16, not packed
  std::vector<float> inverse_frequencies;
  std::uint64_t bytes = 0;
};

struct LayoutOptions {
  WeightFormat dense = WeightFormat::bf16;
  bool screen_head = true;  // where the head can be
};

// `base`: memory of `bytes`, or nullptr to count. Errors: unsupported, naming what the kernels do not take.
Result<ModelLayout> lay_out(const Program& program, const LayoutOptions& options, std::byte* base);

}  // namespace althing::gpu::cuda
