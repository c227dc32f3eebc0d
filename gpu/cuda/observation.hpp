// What an Observer sees of a step on the device: values are copied to the host between launches. For tests and traces; such steps are not captured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/decoder.hpp"
#include "gpu/executor.hpp"

namespace althing::gpu::cuda {

struct ObservedSizes {
  std::uint32_t tokens = 0;
  std::uint32_t hidden = 0;
  std::uint32_t experts = 0;
  std::uint32_t vocabulary = 0;
};

// Whether anything but progress is watched.
inline bool observer_watches(const Observer& o) { return o.hidden || o.router_logits || o.logits; }

// The watch refers to `observer`, which outlives it.
DecoderWatch make_watch(const Observer& observer, cudaStream_t stream, const ObservedSizes& sizes);

}  // namespace althing::gpu::cuda
