// Picks the backend. This file is compiled for the oldest processor so that it can refuse one that the CPU backend's code would crash on.
#include "gpu/executor.hpp"

#include "gpu/cpu/cpu_executor.hpp"

namespace althing::gpu {

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const Model> model, const ExecutorConfig& config) {
  if (model == nullptr) return Error{ErrorCode::invalid_argument, "an executor needs a model", "model"};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    return Error{ErrorCode::unsupported, "this processor has no AVX2 and FMA (x86-64-v3), which the CPU backend needs; run on a newer one",
                 "processor"};
  return cpu::create_executor(std::move(model), config);
}

}  // namespace althing::gpu
