// How much of a GPU's memory is for what, as arithmetic alone: every process of a server can do it before anybody has touched a GPU, and gets the
// same.
#pragma once

#include <cstdint>

#include "gpu/ops/ops.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::gpu::cuda {

// Upper bounds. Weights: packed, with biases and norms widened to float. Scratch: everything that is neither weights nor KV, for the largest step
// that `limits` allows, the context of the driver and its code included. The executor must not take more.
std::uint64_t weight_bytes_max(const Program& program);
std::uint64_t scratch_bytes_max(const Program& program, const Limits& limits);

// What is left for KV of `fraction` of `device_bytes`. REQUIRES: 0 < fraction <= 1. too_large, with all numbers, when nothing is.
Result<std::uint64_t> kv_bytes(const Program& program, const Limits& limits, std::uint64_t device_bytes, double fraction);

}  // namespace althing::gpu::cuda
