// The CPU backend's executor: rows and KV shard of one rank, one step at a time, computed by whoever submits it. gpu/executor.hpp states the
// contract.
#pragma once

#include "gpu/executor.hpp"

namespace althing::gpu::cpu {

// REQUIRES: the processor has AVX2 and FMA (Executor::create checks it before any code of this folder runs).
Result<std::unique_ptr<Executor>> create_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config);

}  // namespace althing::gpu::cpu
