// The host's side of decode_step.hpp: which steps run as one kernel, the memory that kernel needs for itself, and its arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/cuda/decode_step.hpp"
#include "gpu/cuda/device_memory.hpp"
#include "gpu/cuda/device_model.hpp"
#include "gpu/cuda/step_block.hpp"

namespace althing::gpu::cuda {

class WholeStep {
 public:
  // scratch: what the decoder's other kernels use as well; the rest is allocated here. kv: by layer. The result is empty where the kernel does not
  // take the model. Errors: too_large (memory, named).
  static Result<std::unique_ptr<WholeStep>> create(const DeviceModel& model, const std::vector<LayerKv>& kv, const DecodeScratch& scratch,
                                                   std::uint32_t processors);

  // What the first kernel of a step must clear.
  std::uint32_t* cleared() const { return cleared_.get(); }
  std::uint32_t cleared_words() const { return static_cast<std::uint32_t>(cleared_.size()); }
  // What it must count up.
  std::uint32_t* step() const { return step_.get(); }

  // The step's block: tokens, their rotation, and where each layer's key and value go.
  struct Inputs {
    StepTokens tokens;
    const float* cosine = nullptr;
    const float* sine = nullptr;
    const std::int32_t* slots = nullptr;    // of group 0; one a group
    unsigned long long* counted = nullptr;  // (layers, experts): RouteTallies::tokens
    bool far = false;                       // StepShape's
  };
  Status enqueue(const Inputs& inputs, const std::vector<std::uint32_t>& groups, cudaStream_t stream);

  // For benchmarks: device memory of (blocks, layers, decode_stamps), or nullptr.
  void stamp_to(unsigned long long* stamps) { args_.stamps = stamps; }
  void prefetch(std::uint32_t bytes) { args_.prefetch_bytes = bytes; }
  // Not ok when a step that has ended did not end well.
  Status status() const;
  std::uint64_t bytes() const { return cleared_.bytes() + sums_.bytes() + words_.bytes() + shares_.bytes(); }

  // Positions up to which every split of attention is a single segment.
  static constexpr std::uint32_t near_positions(std::uint32_t kv_heads, std::uint32_t processors) { return processors / kv_heads * kv_segment; }

 private:
  WholeStep() = default;

  std::uint32_t blocks_ = 0;
  DecodeStepArgs args_;
  DeviceBuffer<std::uint32_t> cleared_, step_;
  DeviceBuffer<unsigned long long> sums_, words_;
  DeviceBuffer<PhaseShare> shares_;
  PinnedBuffer<std::uint32_t> status_;
};

}  // namespace althing::gpu::cuda
