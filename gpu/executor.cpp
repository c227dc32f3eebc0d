// Picks the backend. This file is compiled for the oldest processor so that it can refuse one that the CPU backend's code would crash on.
#include "gpu/executor.hpp"

#include <future>
#include <string>
#include <utility>

#include "gpu/cpu/cpu_executor.hpp"
#include "gpu/cuda/cuda_executor.hpp"
#include "gpu/cuda/device_info.hpp"
#include "gpu/drafting_executor.hpp"
#include "gpu/synthetic_executor.hpp"

namespace althing::gpu {
namespace {

Status check_gpu(std::uint32_t gpu) {
  const CudaReport report = cuda_devices();
  if (report.devices.empty()) return Error{ErrorCode::unsupported, "no GPU can be used: " + report.reason, "device"};
  if (gpu >= report.devices.size())
    return Error{ErrorCode::unsupported,
                 "GPU " + std::to_string(gpu) + " is asked for, and this process sees " + std::to_string(report.devices.size()) +
                     "; each rank takes one GPU: use fewer ranks",
                 "device"};
  const CudaDevice& device = report.devices[gpu];
  if (!is_supported(device))
    return Error{ErrorCode::unsupported,
                 "GPU " + std::to_string(gpu) + " is a " + device.name + " of compute capability " + std::to_string(device.compute_major) + "." +
                     std::to_string(device.compute_minor) + ", and the kernels are built for 9.0 (Hopper); choose others with CUDA_VISIBLE_DEVICES",
                 "device"};
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const Model> model, const ExecutorConfig& config) {
  if (model == nullptr) return Error{ErrorCode::invalid_argument, "an executor needs a model", "model"};
  if (config.draft != nullptr) {
    if (config.device == Device::synthetic)
      return Error{ErrorCode::unsupported, "a synthetic engine computes nothing, so there is nothing to guess", "draft-model"};
    ExecutorConfig alone = config;
    alone.draft = nullptr;
    auto target = create(model, alone);
    if (!target) return target.error();
    return drafting_executor(std::move(*target), model->spec, config);
  }
  if (config.device == Device::synthetic) return create_synthetic_executor(std::move(model), config);
  if (config.device == Device::cuda) {
    if (config.mirror != nullptr)
      return Error{ErrorCode::unsupported, "the CUDA backend does not copy KV pages yet: set --kv-mirror-mib to 0", "kv-mirror-mib"};
    if (!config.control.off())
      return Error{ErrorCode::unsupported, "the CUDA backend gives tokens the experts they choose; use --device cpu for expert control", "control"};
    if (auto status = check_gpu(config.gpu); !status) return status.error();
    return cuda::create_executor(std::move(model), config);
  }
  if (model->dummy_seed)
    return Error{ErrorCode::unsupported, "a dummy model has no weights, and only the CUDA backend makes some; give a model folder, or use a GPU",
                 "load"};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    return Error{ErrorCode::unsupported, "this processor has no AVX2 and FMA (x86-64-v3), which the CPU backend needs; run on a newer one",
                 "processor"};
  return cpu::create_executor(std::move(model), config);
}

Result<StepResult> Executor::run(const StepPlan& plan, Communicator& communicator) {
  // Shared, because the waiting thread may wake and leave before set_value has returned.
  auto answer = std::make_shared<std::promise<Result<StepResult>>>();
  auto future = answer->get_future();
  // The caller keeps the communicator, and nobody uses it after `done`.
  submit(plan, std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator),
         [answer](Result<StepResult> result) { answer->set_value(std::move(result)); });
  return future.get();
}

Status Executor::damage(RowIndex, Damage) {
  return Error{ErrorCode::unsupported, "this backend cannot damage a row on purpose; use CPU ranks", "damage"};
}

}  // namespace althing::gpu
