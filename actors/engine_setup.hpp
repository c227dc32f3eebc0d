// What the core and every rank must agree on, computed from the model folder and the settings alone, so that each process can do it for itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/settings.hpp"
#include "gpu/executor.hpp"
#include "protocol/harmony/format.hpp"
#include "scheduler/core.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::actors {

struct EngineSetup {
  std::shared_ptr<const gpu::Model> model;
  std::vector<RankPlacement> placements;
  gpu::Device device = gpu::Device::cpu;
  std::string device_why;  // for the log
  gpu::DenseFormat dense = gpu::DenseFormat::bf16;
  std::uint64_t kv_mib = 0;  // of each rank, as given or as computed
  KvLayout kv;
  Limits limits;  // context clipped to what the model allows

  // What ends a turn: the model's own list, else the format's.
  std::vector<TokenId> stop_tokens(const protocol::harmony::Format& format) const {
    return model->stop_tokens.empty() ? format.sampling_stops() : model->stop_tokens;
  }
  scheduler::CoreConfig core_config() const { return {limits, kv, model->spec.vocabulary}; }
  gpu::ExecutorConfig executor_config(std::uint32_t rank, std::uint32_t threads) const {
    return {placements[rank], kv, limits, threads, device, dense, rank};
  }
};

// Asks the machine for its GPUs only where the settings leave something open, and never makes a context. The setup's device and kv_mib, given as
// settings, lead to the same setup in another process, without asking. Errors: those of load_gpt_oss or dummy_model, place, choose_device,
// cuda::kv_bytes and kv_layout; unsupported for a dummy model on CPU ranks.
Result<EngineSetup> set_up_engine(const ServeSettings& settings);

// The chat format of the settings' tokenizer folder, else of the model's: tokenizer.json, else the ranks of o200k_base.tiktoken with Harmony's
// special tokens. Errors: those of Tokenizer and Format::of; invalid_argument when a dummy model comes without a folder.
Result<protocol::harmony::Format> chat_format(const ServeSettings& settings);

// The folder's name, which clients are told; dummy-20b for a dummy model.
std::string model_name(const ServeSettings& settings);

// One line that says which device computes, and why.
void log_device(const EngineSetup& setup);

// Weights, KV and what is left of the machine's memory, as a table for people.
std::string memory_table(const EngineSetup& setup, const gpu::ExecutorMemory& memory);

}  // namespace althing::actors
