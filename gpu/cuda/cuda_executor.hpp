// The CUDA backend's executor: one rank on one GPU. gpu/executor.hpp states the contract. The same function exists in builds without CUDA.
#pragma once

#include "gpu/executor.hpp"

namespace althing::gpu::cuda {

// REQUIRES: config.gpu is a GPU that is_supported() (Executor::create checks it). Errors: unsupported (this build, or this model, named);
// too_large (the device's memory, with both numbers).
Result<std::unique_ptr<Executor>> create_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config);

}  // namespace althing::gpu::cuda
